"""History 16: a full restart right behind a commit (T7, R12).

`prepare(commit_when_prepared)` was acknowledged, and nothing came after it in the log: no outcome, no commit index that a disk
would know of. Every process dies, or every machine. After the restart the transaction is committed; one that was open is aborted.
"""

from lockstep.core.server_messages import (
    Answers,
    OutcomeState,
)
from tests.simulation.staging.moments import answers_client
from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("processes, answered", "machines, answered", "processes, not answered", "machines, not answered")


def play(stage: Stage, case: str) -> None:
    what, is_answered = case.split(", ")
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    left_open = client.transaction("a")
    key = client.transaction("a", "b")
    strike = stage.kill if what == "processes" else stage.power_loss
    if is_answered == "not answered":
        stage.when(answers_client(A, Answers), lambda: strike(A, B, C))
        commit = client.commit(key)
        stage.until(lambda: not stage.world.brokers[A].is_alive)
    else:
        commit = client.commit(key)
        stage.done(commit)
        strike(A, B, C)
    stage.run(0.2)
    stage.revive(A, B, C)
    stage.until(lambda: commit.is_done, 30)
    stage.expect(reader.outcome(key) == OutcomeState.COMMITTED, "what was acknowledged, or decided, stays")
    stage.expect(reader.outcome(left_open) == OutcomeState.ROLLED_BACK, "what was open is aborted")
    stage.expect(len(reader.browse("a")) == len(reader.browse("b")) == 1, "all of it")
