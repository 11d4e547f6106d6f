"""History 18, second part: a crash in the middle of installing a snapshot over old state (R8).

C returns with a disk that the map does not name and a log that no longer reaches; it is sent a whole snapshot. Power is lost
at C's k-th step on that disk, and once more when C is in sync. Half a snapshot is never taken for a set, and a whole one is
durable: C alone has everything when the disks of A and B are lost.
"""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, DiskError, DiskProblem
from tests.simulation.staging.stage import A, B, C, Stage

CASES = (*range(1, 12, 2), 100)
"""100 is beyond the end: there is no crash but the last one."""


def play(stage: Stage, case: int) -> None:
    stage.retain_little()
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    stage.done(client.publish("a", count=3, size=400))
    stage.power_loss(C)
    stage.until(lambda: stage.in_sync == {A, B})
    stage.done(client.publish("b", count=6, size=3000))
    _lose_power_while_installing(stage, case)
    stage.revive(C)
    stage.run(0.5)
    stage.world.disks[C].fault = None
    stage.revive(C)
    stage.whole()
    stage.expect(any("whole" in name for name in stage.world.branches.counts), "a whole snapshot was sent")
    stage.power_loss(A, B, C)
    for lost in (A, B):
        stage.world.lose_disk(lost)
    stage.revive(A, B, C)
    stage.whole()
    stage.expect((len(client.browse("a")), len(client.browse("b"))) == (3, 6), "C has everything")


def _lose_power_while_installing(stage: Stage, left: int) -> None:
    disk = stage.world.disks[C]

    def fault(set_name: SetName, step: AnyStep) -> None:
        nonlocal left
        if set_name in disk.directories and b"install" in disk.directories[set_name].meta:
            left -= 1
            if left == 0:
                disk.fault = None
                stage.power_loss(C)
                raise DiskError(DiskProblem.FAILED, "no power", step)

    disk.fault = fault
