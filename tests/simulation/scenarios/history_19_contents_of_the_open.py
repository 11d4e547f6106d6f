"""History 19: the content of a transaction that stays open for long (DESIGN 5).

Its messages are in segments that hold nothing else that is needed: everything behind them is consolidated, and the segments
stay for readers of events alone. Then it commits, and all brokers restart: its messages have their bodies.
"""

from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.begin()
    stage.done(client.publish("a", key, size=200_000))
    stage.done(client.publish("b", key, size=200_000))
    for _ in range(12):
        stage.done(reader.publish("b", size=400_000))
        stage.done(reader.settle("b", reader.take("b")))
    stage.run(2)
    status = stage.world.stores[A].core.status()[0]
    stage.expect(status.owed_bytes > 0, f"the first segment is not needed by the state: {status}")
    stage.done(client.commit(key))
    stage.power_loss(A, B, C)
    stage.run(0.1)
    stage.revive(A, B, C)
    bodies = [*reader.browse("a"), *reader.browse("b")]
    stage.expect([len(body) for body in bodies] == [200_000, 200_000], "both messages, with their bodies")
