"""Qpid's unknown outcome: the connection is lost while a commit is under way, before it, in it and behind it (P6, T5).

The client's link is cut at the moment of sending, when the primary has written the commit, or when it answers; and the
session may be lost too, with a restart of all brokers. Whatever happened, the client finds out what became of it, and it is
the truth.
"""

from lockstep.core.ids import LogIndex
from lockstep.core.server_messages import Answers
from tests.simulation.staging.moments import Moment, acknowledges, answers_client, writes_frames
from tests.simulation.staging.stage import A, B, C, Stage

CASES = tuple(
    f"{moment} {and_then}"
    for moment in ("sending", "writing", "voting", "answering")
    for and_then in ("cut", "restart")
)


def play(stage: Stage, case: str) -> None:
    moment, and_then = case.split()
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    moments: dict[str, Moment] = {
        "writing": writes_frames(A),
        "voting": acknowledges(B, LogIndex(stage.log_end(A) + 1)),
        "answering": answers_client(A, Answers),
    }

    def strike() -> None:
        stage.cut("c1", A)
        if and_then == "restart":
            stage.kill(A, B, C)

    if moment in moments:
        stage.when(moments[moment], strike)
    commit = client.commit(key)
    if moment == "sending":
        strike()
    stage.run(2)
    stage.revive(A, B, C)
    stage.mend("c1", A)
    stage.until(lambda: commit.is_done, 40)
    stage.until(lambda: not stage.world.unresolved, 20, "the outcome")
    stage.expect(reader.outcome(key) != 0, "the outcome is known")
    stage.expect(len(reader.browse("a")) == len(reader.browse("b")), "all or nothing")
