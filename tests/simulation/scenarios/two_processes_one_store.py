"""A broker process that was taken for dead wakes beside its successor on the same store (R2, histories 1 and 23).

A is stopped in the place of writing x to its store; nobody has x. B begins the next epoch. A new process of A opens the
store and waits for B's log; then the old one wakes and writes x. The store refuses it: another process, and a higher epoch,
have it now. A is in sync when it has what B wrote and not before: so it can go on alone when the disks of B and C are lost.
"""

from tests.simulation.broker import Broker
from tests.simulation.staging.moments import writes_frames
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.until(lambda: bool(other.session.core.session))
    old = stage.world.brokers[A]
    stage.when(writes_frames(A), lambda: stage.world.pause(old, 60_000_000))
    stage.cut("c1", B, C)
    stage.cut("c2", B, C)
    x = [client.publish("a", count=3) for _ in range(4)]
    late = [other.publish("a") for _ in range(6)]
    stage.until(lambda: old.is_paused)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    primary = stage.map.primary
    stage.serves(primary)
    stage.hold(primary, A)
    stage.world.brokers[A] = Broker(stage.world, A, old.host)
    stage.run(0.1)
    old.resume()
    stage.run(0.0005)
    old.die()
    stage.world.network.listen(f"broker:{A}", old.host, stage.world.brokers[A]._accept)
    stage.mend("c1", B, C)
    stage.until(lambda: all(promise.is_done for promise in x))
    stage.let_go(primary, A)
    stage.until(lambda: A in stage.in_sync, what="A in sync")
    stage.power_loss(B, C)
    for lost in (B, C):
        stage.world.lose_disk(lost)
    stage.revive(B, C)
    stage.mend("c2", B, C)
    stage.until(lambda: all(promise.is_done for promise in late))
    stage.whole()
    stage.expect(len(client.browse("a")) == 18, "what was acknowledged is there")
