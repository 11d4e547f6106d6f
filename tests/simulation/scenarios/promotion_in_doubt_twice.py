"""A promotion that lands behind the next one (R5, P7).

B asks to be promoted, and etcd does not answer in time; it asks again, and is not answered either. Then the first one lands: the
map has an entry that B signed, with its lease key, and not the one that it asked for last. B leaves it alone, gives up the key,
and begins the next epoch.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a", count=3))
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    epoch, etcd = stage.epoch, stage.world.etcd
    etcd.detain = lambda call: call.operation.__name__ == "promote"
    stage.kill(A)
    in_doubt = stage.world.branches.counts
    stage.until(lambda: in_doubt["note: promotion in doubt"] == 2, what="two promotions in doubt")
    etcd.detain = None
    del etcd.detained[1:]
    etcd.deliver_detained()
    stage.expect(stage.epoch == epoch + 1, "the first of them has landed")
    stage.serves(B)
    stage.expect(stage.epoch > epoch + 1, "an epoch that B cannot confirm as its own is not served")
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
    stage.revive(A, C)
    stage.whole()
