"""Tens of concurrent prepares (QPID-5139: "HA transactions block a thread each, can deadlock the broker"; T9).

Forty transactions of four clients are committed at once while one backup's store stands still: all wait, nobody blocks anybody,
new transactions begin meanwhile. When the store goes on all of them commit, and their tx-queues are released.
"""

from tests.simulation.staging.stage import C, Stage

EACH = 10


def play(stage: Stage) -> None:
    stage.start()
    clients = [stage.client(f"c{number}") for number in range(1, 5)]
    clients[0].declare("a", "b")
    keys = [(client, client.transaction("a", "b")) for client in clients for _ in range(EACH)]
    stage.pause_store(C, 0.5)
    commits = [client.commit(key) for client, key in keys]
    stage.run(0.2)
    stage.expect(not any(commit.is_done for commit in commits), "no commit before every member has it")
    more = clients[1].begin()
    stage.until(lambda: all(commit.is_done for commit in commits), 5, "all commits")
    stage.expect(all(commit.operation and commit.operation.is_ok for commit in commits), "all commit")
    stage.done(clients[1].rollback(more))
    stage.expect(len(clients[0].browse("a")) == 4 * EACH, "every message")
