"""History 2: refusal after the fact (DESIGN 3 and 4, T2).

The `prepare` that is the commit is in the log, on some disks or on all, answered or not. Then somebody says "no" or "roll back":
a backup's late refusal, a fence asked through GetOutcome, the client's pipelined rollback, the end of its session. None of it
changes anything: who hears of the transaction hears that it committed, on this primary and on the next.
"""

from lockstep.client.session_events import Close
from lockstep.core.ids import TransactionKey
from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.refusals import refuse
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage

WHO = ("refusal", "fence", "pipelined rollback", "session's end")
CASES = tuple(f"{who}, {when}" for who in WHO for when in ("on the way", "answered"))


def play(stage: Stage, case: str) -> None:
    who, when = case.split(", ")
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    end = stage.log_end(A)
    if when == "on the way":
        stage.pause_store(C, 0.4)
    commit = client.commit(key)
    stage.until(lambda: commit.is_done if when == "answered" else stage.log_end(A) > end)
    _object(stage, who, client, reader, key)
    stage.until(lambda: commit.is_done)
    stage.expect(bool(commit.operation and commit.operation.is_ok) or who == "session's end", "it committed")
    stage.expect(reader.outcome(key) == OutcomeState.COMMITTED, "everybody hears that")
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.expect(reader.outcome(key) == OutcomeState.COMMITTED, "from the successor too")
    stage.expect(len(reader.browse("a")) == len(reader.browse("b")) == 1, "all of it")


def _object(
    stage: Stage, who: str, client: ScriptedClient, reader: ScriptedClient, key: TransactionKey
) -> None:
    if who == "refusal":
        refuse(stage, B, key)
    elif who == "fence":
        reader.ask_outcome(key, fence=True, of=client)
    elif who == "pipelined rollback":
        client.rollback(key)
    else:
        client.session.feed(Close())
    stage.run(0.1)
