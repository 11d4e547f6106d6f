"""History 18, second part: a crash in the middle of installing a snapshot over old state (R8).

C returns with a disk that the map does not name and a log that no longer matches; it is sent a whole snapshot. Power is lost
at C's k-th step on that disk. Half a snapshot is never taken for a set: C begins again, and is in sync in the end.
"""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, DiskError, DiskProblem
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = tuple(range(1, 24, 2))


def options() -> Options:
    return calm(small_limits=True)


def play(stage: Stage, case: int) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    for _ in range(4):
        stage.done(client.publish("a", count=3, size=400))
    stage.power_loss(C)
    stage.until(lambda: stage.in_sync == {A, B})
    for _ in range(12):
        stage.done(client.publish("b", count=6, size=3000))
    disk = stage.world.disks[C]
    left = case

    def fault(set_name: SetName, step: AnyStep) -> None:
        nonlocal left
        if disk.directories[set_name].meta.find(b"install") < 0:
            return
        left -= 1
        if left == 0:
            disk.fault = None
            stage.power_loss(C)
            raise DiskError(DiskProblem.FAILED, "no power", step)

    disk.fault = fault
    stage.revive(C)
    stage.run(1)
    disk.fault = None
    stage.revive(C)
    stage.whole()
    stage.kill(A, B)
    stage.run(1)
    stage.revive(A, B)
