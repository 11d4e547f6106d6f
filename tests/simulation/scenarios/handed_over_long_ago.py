"""A set was handed over as it should be, and was led since; then its primary dies, and whoever leads next has heard of that
hand-over, too (T8).

It is nothing to go by any more: the successor has gone by it, in an epoch that this log shows. So there is nothing to warn of,
and the set is taken over as behind any failure.
"""

from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    ask_hand_over(stage, A, B)
    stage.serves(B)
    stage.done(client.publish("a"))
    stage.until(lambda: stage.in_sync == {A, B, C}, what="all follow")
    stage.suspend(A, 5.0)
    stage.kill(B)
    stage.serves(C)
    stage.expect(stage.epoch == 3, "C leads behind B's reign")
    stage.expect(world.branches.counts["note: handed over in vain"] == 0, "it was not in vain")
    stage.done(client.publish("a"))
    stage.revive(B)
