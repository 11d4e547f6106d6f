"""A learner is counted before it is in sync (R8): it comes into the set only when it is durable up to where it began to count.

C returns, and what it says is on its way; meanwhile x is published, and acknowledged by A and B alone. When A hears that C is
near the log's end, C begins to count: for what is published from now on. x is from before, and C has not heard of it: were it in
sync, it could be promoted without.
"""

from tests.simulation.options import Options
from tests.simulation.staging.moments import acknowledges
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    end = stage.log_end(A)
    stage.when(acknowledges(C, end), lambda: stage.hold(C, A))
    stage.revive(C)
    stage.until(lambda: stage.durable(C) >= end, what="C as far as A")
    stage.run(0.05)
    stage.hold(A, C)
    x = client.publish("a")
    stage.done(x)
    stage.let_go(C, A)
    stage.run(0.3)
    stage.expect(C not in stage.in_sync, "C, which lacks x, is not in sync")
    if C in stage.in_sync:
        stage.power_loss(A, B)
        stage.world.lose_disk(A)
        stage.world.lose_disk(B)
        stage.revive(A, B)
    stage.let_go(A, C)
    stage.whole()
    stage.expect(len(client.browse("a")) == 2, "what was acknowledged is there")
