"""A branch that had nothing to commit ends with its vote: whatever is decided for the others, it has not ended otherwise."""

import msgspec
import pytest

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import Verdict
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.records import Prepare
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import OutcomeAnswer, OutcomeState
from lockstep.core.xa import BranchState, XaStatus
from services.coordinator.core.set_answers import refused_completion, refused_vote
from services.coordinator.core.votes import Completion, Vote, heuristic_status
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

XID = branch_xid(GlobalId(bytes(range(GLOBAL_ID_BYTES))), 0, generation_tag("a1b2c3d4-0000")).encode()


def worker(rig: Rig) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0, hears_read_only=True))
    return client


def voted(rig: Rig) -> TransactionKey:
    """A worker has its branch prepared, in which it has done nothing."""
    client = worker(rig)
    key = client.branch(XID)
    assert client.ok(PrepareBranchCommand(0, XID)) == XaStatus.RDONLY
    return key


def ended(rig: Rig, command: AnyCommand) -> Completion:
    """What a coordinator makes of the answer."""
    answered = rig.client(f"coordinator-{type(command).__name__}").do(command)
    return refused_completion(answered.code, BranchState(answered.value))


def test_it_is_no_hazard_when_the_others_are_rolled_back() -> None:
    """Its coordinator has not heard the vote: another branch had voted no before."""
    rig = Rig()
    voted(rig)
    end = ended(rig, RollbackBranchCommand(0, XID))
    assert heuristic_status(Verdict.ABORT, [end, Completion.ROLLED_BACK]) is XaStatus.OK
    rig.check_log()


def test_it_is_no_hazard_when_the_others_commit() -> None:
    """Its worker has heard the vote, and its coordinator asks again."""
    rig = Rig()
    voted(rig)
    again = rig.client().do(PrepareBranchCommand(0, XID))
    assert refused_vote(again.code, BranchState(again.value)) is Vote.COMMITTED
    end = ended(rig, CommitBranchCommand(0, XID))
    assert heuristic_status(Verdict.COMMIT, [end, Completion.COMMITTED]) is XaStatus.OK


@pytest.mark.parametrize("is_restarted", [False, True], ids=["failover", "full restart"])
def test_a_successor_knows_it(is_restarted: bool) -> None:
    rig = Rig()
    voted(rig)
    successor = Rig(predecessor=rig, is_restarted=is_restarted)
    assert ended(successor, RollbackBranchCommand(0, XID)) is Completion.UNKNOWN_BRANCH
    assert ended(successor, CommitBranchCommand(0, XID)) is Completion.COMMITTED


def test_what_has_committed_something_is_a_hazard_to_a_rollback() -> None:
    rig = Rig()
    rig.client().declare("q")
    client = worker(rig)
    client.branch(XID, publish("q", b"x"))
    client.ok(CommitBranchCommand(0, XID, True))
    end = ended(rig, RollbackBranchCommand(0, XID))
    assert heuristic_status(Verdict.ABORT, [end]) is XaStatus.HEURCOM


def test_to_whoever_asks_for_its_outcome_it_has_committed_without_a_reason() -> None:
    rig = Rig()
    key = voted(rig)
    client = rig.client()
    client.say(GetOutcome(1, key, False))
    (told,) = client.heard_of(OutcomeAnswer)
    assert (told.state, told.reason) == (OutcomeState.COMMITTED, 0)


def test_a_record_of_an_older_version_does_not_say_it() -> None:
    record = Prepare(None, (LogIndex(7), Rig().core.epoch), True, XID, is_read_only=True)
    *older, is_read_only = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    assert is_read_only is True
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Prepare)
    assert decoded == msgspec.structs.replace(record, is_read_only=False)
