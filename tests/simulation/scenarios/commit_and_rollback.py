"""Qpid's `test_tx_simple_commit` and `test_tx_simple_rollback`: transactions beside plain sends on the same queues (P1, P3).

A client publishes to a and b, inside a transaction and outside of it in turns, and accepts in the transaction what was published
outside. Until the end only the plain sends are seen. Then one transaction commits, with everything, and another rolls back, with
nothing: what it accepted is there again.
"""

from tests.simulation.staging.stage import Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    for ends_well in (True, False):
        stage.done(client.publish("a", count=2))
        before = {queue: reader.browse(queue) for queue in ("a", "b")}
        taken = client.take("a")
        key = client.begin()
        client.settle("a", taken, key)
        client.publish("b", key)
        stage.done(client.publish("a", count=1))
        stage.done(client.publish("a", key))
        stage.expect(len(reader.browse("a")) == len(before["a"]) + 1, "only the plain send is seen in a")
        stage.expect(reader.browse("b") == before["b"], "nothing of the open transaction is seen in b")
        end = stage.done(client.commit(key) if ends_well else client.rollback(key))
        stage.expect(end.is_ok, "the end of the transaction is acknowledged")
        grown = 1 if ends_well else 0
        stage.expect(len(reader.browse("b")) == len(before["b"]) + grown, "b has all or nothing")
        stage.expect(
            len(reader.browse("a")) == len(before["a"]) + 1, "a has all or nothing, and what was accepted"
        )
