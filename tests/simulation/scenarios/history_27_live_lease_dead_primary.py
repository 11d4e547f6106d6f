"""History 27: a live lease, a dead primary (R6).

A's own store hangs: nothing can be committed. A stops renewing its lease, and gives up its key; another is promoted within
about a lease. And a key is never deleted by name for a process that renews its lease: the end of an old process takes what
is under its own lease and nothing of its successor's.
"""

from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import ETCD, A, B, Stage

CASES = ("store hangs", "old lease revoked")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    if case == "store hangs":
        stage.pause_store(A, 30)
        published = client.publish("a")
        stage.until(lambda: published.is_done, 12, "an answer of another primary")
        stage.expect(stage.map.primary != A, "another leads")
        return
    lease = stage.world.brokers[A].etcd.keeper.lease_id
    ask_hand_over(stage, A, B)
    stage.until(lambda: stage.epoch == 2, what="the successor")
    successor = stage.map.primary
    stage.serves(successor)
    stage.done(client.publish("a"))
    stage.kill(A)
    stage.revive(A)
    stage.whole()
    stage.hold(ETCD, successor)
    stage.world.etcd.execute(lambda etcd: etcd.revoke(lease))
    stage.cut("c2", successor)
    asked = other.ask_browse("a")
    for _ in range(26):
        client.browse("a")
        stage.run(0.1)
    stage.mend("c2", successor)
    stage.let_go(ETCD, successor)
    stage.until(lambda: asked.is_done)
