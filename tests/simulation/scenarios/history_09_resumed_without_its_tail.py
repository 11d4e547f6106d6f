"""History 9: a transaction resumed without its tail (T1, T8).

The client sends five operations; the last two are in the suffix of a primary that dies, and the successor has the first
three. When the client then commits, the three alone must not be committed: the new epoch has aborted the transaction, and
the client is told so.
"""

from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b", "a")
    stage.cut(A, B, C)
    tail = [client.publish("b", key), client.publish("a", key)]
    stage.run(0.1)
    stage.kill(A)
    stage.mend(A, B, C)
    commit = client.commit(key)
    stage.until(lambda: commit.is_done and all(promise.is_done for promise in tail))
    stage.expect(bool(commit.operation and commit.operation.is_rejected), "the commit is refused")
    stage.expect(reader.outcome(key) == OutcomeState.ROLLED_BACK, "it is rolled back")
    stage.expect(reader.browse("a") == reader.browse("b") == [], "not even its beginning is there")
