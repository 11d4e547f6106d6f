"""History 10c: data loss is accepted while the last member lives, cut off from etcd (R6, R7).

The in-sync set is {A}. A loses etcd and its lease; an operator accepts data loss on B, which begins the next epoch from its
own disk. A, whose client still reaches it, acknowledges nothing once its lease is over.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.kill(B, C)
    stage.until(lambda: stage.in_sync == {A})
    stage.cut(A, ETCD, B, C, "c2")
    stage.cut("c1", B, C)
    stage.run(4)
    stage.revive(B, C)
    stage.run(0.5)
    stage.expect(stage.world.accept_loss(SET, B), "the loss is accepted")
    stage.serves(B)
    first = other.publish("a")
    stage.done(first)
    late = client.publish("a")
    stage.run(1)
    stage.expect(not late.is_done, "a primary without a lease acknowledges nothing")
    stage.mend(A, ETCD, B, C, "c2")
    stage.mend("c1", B, C)
    stage.until(lambda: late.is_done)
    stage.whole()
    heard = sum(bool(promise.operation and promise.operation.is_ok) for promise in (late, first))
    stage.expect(len(client.browse("a")) >= heard, "what was acknowledged is in the successor's log")
