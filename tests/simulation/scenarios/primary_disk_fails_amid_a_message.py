"""The disk of the primary's store takes the first piece of a big message, again and again, and no second one (R6).

Behind that piece the store says that its disk works, and still has nothing more than before: so its primary makes way for a
member that has the message, as one does whose disk takes nothing at all. The publish is acknowledged by whoever leads then.
"""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, DiskError, DiskProblem, WriteSegment
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, Stage, calm

SIZE = 60_000
"""Many pieces, where these are small."""


def options() -> Options:
    """Pieces are small by the seed."""
    return calm(small_limits=True, seed=7)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    limits = stage.world.store_limits
    stage.expect(limits.piece_bytes < SIZE, "the message is written in pieces")
    behind: tuple[int, int] | None = None

    def fail(set_name: SetName, step: AnyStep) -> None:
        nonlocal behind
        if isinstance(step, WriteSegment):
            before, size = behind, sum(map(len, step.parts))
            behind = (step.number, step.offset + size) if size == limits.piece_bytes else None
            if (step.number, step.offset) == before:
                raise DiskError(DiskProblem.FAILED, "input/output error", step)

    stage.world.disks[A].fault = fail
    promise = client.publish("a", size=SIZE)
    stage.until(lambda: stage.map.primary != A, what="another one, whose disk works, leads")
    stage.expect(stage.done(promise).is_ok, "what A's disk did not take is acknowledged")
    stage.world.disk_faults.repair(A)
    stage.whole()
