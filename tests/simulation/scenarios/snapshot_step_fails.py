"""A step on B's snapshot fails, and takes what was written to it and not flushed (DESIGN 5).

B's broker restarts, and its store does not: it loads what is there, and the frames behind it, and not what the store once wrote.
"""

from dataclasses import replace

from lockstep.core.ids import SetName
from services.store.core.disk import (
    AnyStep,
    DiskError,
    DiskProblem,
    SnapshotFlush,
    SnapshotStep,
    SnapshotWrite,
)
from services.store.core.limits import KIB
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("write", "flush")
_FAILING: dict[str, type[SnapshotStep]] = {"write": SnapshotWrite, "flush": SnapshotFlush}
_SMALL = {"consolidated_bytes": KIB, "batch_items_max": 5}
"""Limits so small that single writes come between flushes."""
_ROUNDS_MAX = 100


def options() -> Options:
    return calm(small_limits=True, seed=7)


def play(stage: Stage, case: str) -> None:
    stage.world.store_limits = replace(stage.world.store_limits, **_SMALL)
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    disk, published, lost = stage.world.disks[B], list[bytes](), list[AnyStep]()

    def fail(set_name: SetName, step: AnyStep) -> None:
        if isinstance(step, _FAILING[case]) and len(disk.directories[set_name].snapshot.unflushed) > 0:
            disk.fault = None
            lost.append(step)
            raise DiskError(DiskProblem.FAILED, "input/output error", step)

    disk.fault = fail
    for _ in range(_ROUNDS_MAX):
        published += stage.done(client.publish("a", count=10)).bodies
        stage.done(client.publish("b", count=10))
        stage.done(client.settle("b", client.take("b", 10)))
        stage.run(0.2)
        if lost:
            break
    stage.expect(bool(lost), "a step has failed with something to lose")
    stage.kill(B)
    stage.run(0.1)
    stage.revive(B)
    stage.whole()
    stage.kill(A, C)
    stage.revive(C)
    stage.until(lambda: stage.map.primary == B, what="B as the primary")
    stage.revive(A)
    stage.whole()
    stage.expect(stage.client("c2").browse("a") == published, "all of it, in order")
