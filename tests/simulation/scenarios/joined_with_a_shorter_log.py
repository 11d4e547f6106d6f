"""A newcomer whose disk knew of more commits than the log has that it joins (R5, R7, R8).

B was away when A and C acknowledged many messages. A and C are away then, and the loss of those is accepted on B. C comes back,
gets a snapshot in place of its log, and is in sync. Its stream breaks for a moment: what its disk knew before the snapshot is no
word on the log that it has now, so it subscribes again, and B goes on.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.kill(B)
    stage.until(lambda: stage.in_sync == {A, C})
    lost = []
    for _ in range(20):
        lost.append(client.publish("a"))
        stage.done(lost[-1])
    known = stage.log_end(A)
    stage.run(1)
    stage.power_loss(A, C)
    stage.run(4)
    stage.revive(B)
    stage.run(0.5)
    stage.accept_loss(B, stage.log_end(B), *lost)
    stage.serves(B)
    epoch = stage.epoch
    stage.revive(C)
    stage.until(lambda: stage.in_sync == {B, C}, what="C in sync")
    stage.expect(stage.log_end(B) < known, "the log is shorter than what C knew to be committed")
    stage.hold(B, C)
    stage.run(1)
    stage.let_go(B, C)
    stage.run(3)
    stage.expect(stage.epoch == epoch, f"B goes on in its epoch {epoch}")
    stage.revive(A)
    stage.whole()
