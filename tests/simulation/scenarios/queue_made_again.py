"""A queue is deleted and declared again under an open transaction (DESIGN 3: records name queues, not names; P1, P2).

The transaction has published to the queue and accepted from it. The new queue of that name is another queue: what the transaction
does to the old one is nowhere, on every broker alike, and what it does elsewhere is there. With and without a failover behind.
"""

from tests.simulation.staging.stage import A, Stage

CASES = ("deleted", "made again", "made again, failover")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.done(client.publish("a", count=2))
    key = client.begin()
    stage.done(client.settle("a", client.take("a"), key))
    stage.done(client.publish("a", key))
    stage.done(client.publish("b", key))
    stage.done(other.delete("a"))
    if case != "deleted":
        other.declare("a")
        stage.done(other.publish("a"))
    commit = stage.done(client.commit(key))
    if case.endswith("failover"):
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
    expected = 1 if commit.is_ok else 0
    stage.expect(len(other.browse("b")) == expected, "b has the transaction's message if it committed")
    stage.expect(
        len(other.browse("a")) == (0 if case == "deleted" else 1), "the new queue has its own message only"
    )
