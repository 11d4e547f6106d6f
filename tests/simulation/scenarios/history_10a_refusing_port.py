"""History 10a: a primary whose port answers "connection refused" to others while it lives (R6).

A firewall refuses all connections of other brokers to A and resets the open ones, and A loses etcd. Its client's stream is
well: A answers it until its lease ends. "Connection refused" proves nothing: nobody is promoted while A's lease key is there.
"""

from tests.simulation.staging.stage import ETCD, A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.cut("c2", A)
    stage.cut(A, ETCD)
    network = stage.world.network
    network.refusing.add("broker:b1")
    for side in network.open_streams:
        if not side.is_closed and side.peer.host == "m1" and side.host in ("m2", "m3"):
            network.reset(side)
    asked = other.ask_browse("a")
    for _ in range(20):
        client.ask_browse("a")
        stage.run(0.1)
    stage.expect(stage.epoch == 1, "nobody is promoted while A has its lease")
    stage.until(lambda: asked.is_done, what="a successor's answer")
    stage.run(1)
    network.refusing.clear()
    stage.mend(A, ETCD)
    stage.mend("c2", A)
    stage.whole()
