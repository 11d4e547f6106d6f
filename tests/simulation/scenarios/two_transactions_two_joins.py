"""Two transactions over the same two queues while two backups join (P1, P3, R8: "multiple tx per queue, multiple queues per tx").

B and C come back one after the other while both transactions are open; one accepts what the other cannot see, both publish to
both queues. One commits, B is in sync, the other commits, C is in sync. Then the primary dies, and later its successor.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    first, second, reader = stage.client("c1"), stage.client("c2"), stage.client("c3")
    first.declare("a", "b")
    first.all_done([first.publish("a", count=2), first.publish("b", count=2)])
    stage.kill(B, C)
    stage.until(lambda: stage.in_sync == {A})
    one, other = first.transaction("a", "b"), second.transaction("a", "b")
    stage.revive(B)
    stage.done(first.settle("a", first.take("a"), one))
    stage.done(second.settle("b", second.take("b"), other))
    ended = first.commit(one)
    stage.revive(C)
    stage.until(lambda: ended.is_done and B in stage.in_sync)
    ended = second.commit(other)
    stage.until(lambda: ended.is_done and C in stage.in_sync)
    for broker in (A, B):
        stage.kill(broker)
        stage.until(lambda broker=broker: stage.map.primary != broker, what="a successor")  # type: ignore[misc]
        stage.expect(
            len(reader.browse("a")) == 3 and len(reader.browse("b")) == 3, "both transactions, whole"
        )
        stage.revive(broker)
        stage.whole()
