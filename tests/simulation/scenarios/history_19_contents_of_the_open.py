"""History 19: the content of a transaction that stays open for long (DESIGN 5).

Its messages are in segments that hold nothing else that is needed: everything behind them is consolidated and the segments are
dropped. Then it commits, and all brokers restart: its messages have their bodies.
"""

from tests.simulation.staging.stage import SET, A, B, C, Stage


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
    segments = sorted(stage.world.disks[A].directories[SET].segments)
    stage.expect(segments[0] > 1, f"the first segment is dropped: {segments}")
    stage.done(client.commit(key))
    stage.power_loss(A, B, C)
    stage.run(0.1)
    stage.revive(A, B, C)
    bodies = [*reader.browse("a"), *reader.browse("b")]
    stage.expect([len(body) for body in bodies] == [200_000, 200_000], "both messages, with their bodies")
