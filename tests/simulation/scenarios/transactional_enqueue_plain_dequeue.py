"""Qpid's transactional enqueue with non-transactional dequeue, with a backup that restarts in between (P1, P4; QPID-5966).

A transaction publishes, commits; a plain consumer takes some of it while a backup is away, and while the primary changes. Nothing
comes back that was taken, nothing is gone that was not.
"""

from tests.simulation.staging.stage import A, B, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, consumer = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.commit(client.transaction("a", "a", "a", "a")))
    stage.done(consumer.settle("a", consumer.take("a")))
    stage.kill(B)
    stage.done(consumer.settle("a", consumer.take("a")))
    open_one = client.transaction("a")
    stage.revive(B)
    stage.done(consumer.settle("a", consumer.take("a")))
    stage.done(client.commit(open_one))
    stage.whole()
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.done(consumer.settle("a", consumer.take("a")))
    stage.expect(len(consumer.browse("a")) == 1, "five came, four went")
