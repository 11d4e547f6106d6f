"""History 18: a snapshot beyond the commit index (R8).

B hears nothing; x is on A's disk only. C comes with an empty disk and gets a snapshot at the log's end, x in it, which
cannot be cut back. C may not come into the set before B has x as well. A dies; B is promoted without x, and C, not in the
map, gets another snapshot.
"""

from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.power_loss(C)
    stage.world.lose_disk(C)
    stage.until(lambda: stage.in_sync == {A, B})
    stage.hold(A, B)
    x = client.publish("a")
    stage.run(0.1)
    stage.revive(C)
    stage.until(lambda: stage.durable(C) >= stage.log_end(A) > 1, what="the snapshot on C")
    stage.run(0.3)
    stage.expect(C not in stage.in_sync and not x.is_done, "C is not in sync, and x is not acknowledged")
    stage.cut("c1", B, C)
    stage.kill(A)
    stage.world.lose_disk(A)
    stage.world.stores[A].die()
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.let_go(A, B)
    stage.expect(stage.map.primary == B, "B leads")
    stage.until(lambda: stage.in_sync == {B, C}, what="C in sync with B")
    stage.expect(reader.browse("a") == [], "x is nowhere")
    stage.mend("c1", B, C)
    stage.revive(A)
    stage.until(lambda: x.is_done)
    stage.whole()
