"""History 10b: the lease key comes back between a look at it and a promotion (R5, R6).

A is cut off from etcd until its lease has ended. B and C see the key gone and ask to be promoted; their requests are
delayed. A is back, has a new lease and its key again, and answers its client. The delayed promotion compares that the key is
absent: it fails.
"""

from tests.simulation.staging.stage import ETCD, A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    etcd = stage.world.etcd
    etcd.detain = lambda call: call.operation.__name__ == "promote"
    stage.hold(A, ETCD)
    stage.until(lambda: bool(etcd.detained), what="a backup that asks to be promoted")
    stage.let_go(A, ETCD)
    stage.done(client.publish("a"))
    stage.hold(ETCD, A)
    stage.cut("c2", A)
    etcd.detain = None
    etcd.deliver_detained()
    stage.run(0.5)
    stage.expect(stage.epoch == 1, "the delayed promotion fails")
    asked = other.publish("a")
    for _ in range(12):
        client.browse("a")
        stage.run(0.1)
    stage.mend("c2", A)
    stage.let_go(ETCD, A)
    stage.until(lambda: asked.is_done)
