"""etcd hears a primary that does not hear etcd (R6, P7).

The renewals keep the lease alive, but without an answer the primary may not serve by it. So it gives the lease up, and another
is promoted within about a lease: long before TCP gives the connection up. When nobody hears etcd, nobody leads, until they do.
"""

from tests.simulation.staging.stage import ETCD, A, B, C, Stage

CASES = ("the primary", "everybody")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    deaf = (A,) if case == "the primary" else (A, B, C)
    for broker in deaf:
        stage.hold(ETCD, broker)
    stage.run(3.5)
    published = client.publish("a")
    if case == "the primary":
        stage.until(lambda: published.is_done, 6, "an answer of another primary")
        stage.expect(stage.map.primary != A, "another leads")
    else:
        stage.run(10)
        stage.expect(not published.is_done, "nobody serves without a lease that it heard of")
    for broker in deaf:
        stage.let_go(ETCD, broker)
    stage.done(published)
    stage.whole()
