"""A rolling crash of all brokers, each while the next comes back, with a transaction open across each (P1, P2, P4, P7).

Every new primary is killed in turn, twice round, half a second after it served. Open transactions are aborted and their clients
told; committed ones stay; what is in doubt is found out.
"""

from tests.simulation.staging.stage import Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    for _ in range(6):
        committed = client.commit(client.transaction("a", "b"))
        left_open = client.transaction("a", "b")
        stage.run(0.5)
        victim = stage.map.primary
        late = client.commit(left_open)
        stage.kill(victim)
        stage.run(0.2)
        stage.revive(victim)
        epoch = stage.epoch
        stage.until(lambda epoch=epoch: stage.epoch > epoch, what="a successor")  # type: ignore[misc]
        client.all_done([committed, late])
    stage.whole()
    stage.expect(len(client.browse("a")) == len(client.browse("b")), "every transaction whole")
