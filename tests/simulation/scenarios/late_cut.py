"""A broker process is stopped in the place of cutting its store, and wakes beside its successor (R2, R10).

A wrote x, which nobody else has, and died. B begins the next epoch; A's next process follows, and is stopped where it would cut
x off. Another process of A cuts it, takes over what B wrote and acknowledges it: so it is committed. Then the old one wakes and
cuts, and dies before it writes that again. The store refuses it: another process has it now.
"""

from tests.simulation.broker import Broker
from tests.simulation.staging.moments import acknowledges, cuts, writes_frames
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    base = stage.log_end(B)
    stage.hold(A, B)
    x = client.publish("a", count=2)
    stage.run(0.1)
    stage.kill(A)
    stage.run(0.01)
    stage.lose(A, B)
    stage.let_go(A, B)
    stage.when(cuts(A), lambda: stage.world.pause(stage.world.brokers[A], 60_000_000))
    stage.revive(A)
    stage.until(lambda: stage.world.brokers[A].is_paused, what="A that would cut")
    stage.expect(stage.log_end(B) == base + 1, "B has not got x")
    old = stage.world.brokers[A]
    stage.when(acknowledges(A, stage.log_end(B)), lambda: stage.hold(B, A))
    stage.world.brokers[A] = Broker(stage.world, A, old.host)
    stage.until(lambda: stage.replica(B).commit_index > base, what="a commit in B's epoch")
    writes = writes_frames(A)
    stage.when(
        lambda process, effect: process is old and writes(process, effect),
        lambda: stage.world.pause(old, 60_000_000),
    )
    old.resume()
    stage.run(0.05)
    old.die()
    stage.power_loss(A, B)
    stage.world.lose_disk(B)
    stage.let_go(B, A)
    stage.revive(A, B, C)
    stage.until(lambda: x.is_done)
    stage.whole()
