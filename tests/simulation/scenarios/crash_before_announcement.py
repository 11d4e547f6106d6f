"""A crash after the decision and before its announcement (P2, P6, T5).

The `prepare` that is the commit is at the commit index; the primary dies in the place of the message that would have told the
client, and nobody ever says so in its name. The promoted backup has it: the client, in doubt, learns that it committed.
"""

from lockstep.core.server_messages import (
    Answers,
    OutcomeState,
)
from tests.simulation.staging.moments import answers_client
from tests.simulation.staging.stage import A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    stage.when(answers_client(A, Answers), lambda: stage.kill(A))
    commit = client.commit(key)
    stage.until(lambda: commit.is_done)
    stage.expect(stage.epoch == 2, "a backup was promoted")
    stage.expect(reader.outcome(key) == OutcomeState.COMMITTED, "what was decided stays decided")
    stage.expect(len(reader.browse("a")) == len(reader.browse("b")) == 1, "all of it")
