"""A sector of B's disk cannot be read any more: so is a segment of the journal, or the snapshot (R10).

For a moment B waits for it. Then its disk is damaged as one with a wrong checksum is: B leaves the in-sync set, sets the disk
aside and comes back with a new one. It must not be refused its own store for ever, nor let its journal grow for ever.
"""

from lockstep.core.ids import SetName
from services.store.core.disk import (
    AnyStep,
    DiskError,
    DiskProblem,
    ReadSegment,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    ReadSnapshotValues,
)
from tests.simulation.options import Options
from tests.simulation.scenarios.lost_tail import disk_of
from tests.simulation.staging.stage import SET, B, Stage, calm

CASES = ("at an opening", "behind the consolidator", "in the snapshot", "for a moment")
_SNAPSHOT_READS = ReadSnapshotMeta, ReadSnapshotItems, ReadSnapshotValues


def options() -> Options:
    return calm(small_limits=True, seed=7)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    published = list(stage.done(client.publish("a", count=10, size=300)).bodies)
    old, disk = disk_of(stage), stage.world.disks[B]
    assert old is not None
    spoiled = max(disk.directories[SET].segments)

    def fail(set_name: SetName, step: AnyStep) -> None:
        if set_name != SET or old in disk.directories[SET].aside:
            return
        is_bad = isinstance(step, ReadSegment) and step.number == spoiled
        if isinstance(step, _SNAPSHOT_READS) if case == "in the snapshot" else is_bad:
            raise DiskError(DiskProblem.UNREADABLE, "input/output error", step)

    disk.fault = fail
    if case == "behind the consolidator":
        for _ in range(40):
            published += stage.done(client.publish("a", count=10, size=1000)).bodies
            stage.run(0.5)
    else:
        stage.power_loss(B)
        stage.revive(B)
    if case == "for a moment":
        stage.run(2.5)
        disk.fault = None
    else:
        stage.until(lambda: disk_of(stage) not in (None, old), 60, "another disk of B's in the map")
    stage.whole()
    stage.expect((disk_of(stage) == old) == (case == "for a moment"), "a moment condemns no disk")
    stage.expect(client.browse("a") == published, "everything acknowledged is there")
