"""A branch whose name was used before: our coordinator gives a name once, other transaction managers may use one again."""

import pytest

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    EndCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.decision_log import CLOCK_MS, LogView, OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.inputs import DecisionHeard
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.coordinator.core.settings import CoordinatorLimits
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

GENERATION = "a1b2c3d4-0000"
OURS = branch_xid(GlobalId(bytes(range(GLOBAL_ID_BYTES))), 0, generation_tag(GENERATION)).encode()
FOREIGN = Xid(7, b"global", b"branch").encode()
PREPARED = [PrepareBranchCommand(0, OURS)]
ENDS: dict[str, list[AnyCommand]] = {
    "in two phases": [*PREPARED, CommitBranchCommand(0, OURS)],
    "in one phase": [CommitBranchCommand(0, OURS, True)],
    "rolled back when it had voted": [*PREPARED, RollbackBranchCommand(0, OURS)],
    "ended by an operator": [*PREPARED, EndHeuristicallyCommand(0, OURS, True), ForgetBranchCommand(0, OURS)],
}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.client().declare("q")
    return rig


def worker(rig: Rig) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    return client


def work(client: RigClient, xid: bytes) -> TransactionKey:
    key = LogIndex(client.ok(StartCommand(0, xid))), client.rig.core.epoch
    client.ok(publish("q", b"once", transaction=key, sequence=1))
    client.ok(EndCommand(0, xid, 1))
    return key


@pytest.mark.parametrize("end", list(ENDS))
def test_the_name_of_a_branch_that_has_ended_is_not_used_again(rig: Rig, end: str) -> None:
    """Its worker has not heard how it voted, and repeats its work. The decision log would commit that, too."""
    client = worker(rig)
    work(client, OURS)
    for command in ENDS[end]:
        client.ok(command)
    left = rig.bodies("q")
    again = worker(rig)
    assert again.do(StartCommand(0, OURS)).code is ErrorCode.NOT_ALLOWED
    begun = again.begin()
    assert again.do(StartCommand(0, OURS, transaction=begun)).code is ErrorCode.NOT_ALLOWED
    assert rig.bodies("q") == left


def test_the_name_of_a_branch_that_had_nothing_to_commit_is_not_used_again(rig: Rig) -> None:
    client = rig.client()
    client.ok(SelectDtxCommand(0, hears_read_only=True))
    client.ok(StartCommand(0, OURS))
    client.ok(EndCommand(0, OURS, 0))
    assert client.ok(PrepareBranchCommand(0, OURS)) == XaStatus.RDONLY
    assert worker(rig).do(StartCommand(0, OURS)).code is ErrorCode.NOT_ALLOWED


def test_the_name_stays_used_behind_a_restart(rig: Rig) -> None:
    client = worker(rig)
    work(client, OURS)
    for command in ENDS["in two phases"]:
        client.ok(command)
    successor = Rig(predecessor=rig, is_restarted=True)
    assert worker(successor).do(StartCommand(0, OURS)).code is ErrorCode.NOT_ALLOWED


def test_work_that_was_rolled_back_before_its_vote_may_be_done_again(rig: Rig) -> None:
    client = worker(rig)
    work(client, OURS)
    client.ok(RollbackBranchCommand(0, OURS))
    work(client, OURS)
    client.ok(PrepareBranchCommand(0, OURS))
    client.ok(CommitBranchCommand(0, OURS))
    assert rig.bodies("q") == [b"once"]


def test_another_transaction_manager_may_use_an_xid_again(rig: Rig) -> None:
    client = worker(rig)
    for _ in range(2):
        work(client, FOREIGN)
        client.ok(CommitBranchCommand(0, FOREIGN, True))
    assert rig.bodies("q") == [b"once", b"once"]


def test_a_repeated_branch_whose_first_end_was_forgotten_is_not_committed_by_the_outcome(rig: Rig) -> None:
    """Where a set has more outcomes than it may keep, it forgets one before the decision log does."""
    rig = Rig(PrimarySettings(outcomes_max=1))
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    work(client, OURS)
    for command in ENDS["in two phases"]:
        client.ok(command)
    ended_ms = rig.wall_ms
    for _ in range(3):
        client.commit(client.begin(), 0)
        rig.pass_time(1_000)
    rig.pass_time(CLOCK_MS)
    again = worker(rig)
    key = work(again, OURS)
    again.ok(PrepareBranchCommand(0, OURS))
    rig.pass_time(6_000)
    asked = rig.questions.pop(0)
    view = LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms))
    rig.feed(DecisionHeard(SET, asked.request, asked.transaction, view))
    assert key not in {buffer.key for buffer in rig.state.transactions.prepared()}
    assert rig.bodies("q") == [b"once"]


def test_a_set_knows_how_a_branch_ended_for_longer_than_the_decision_log_does() -> None:
    """Behind that the log has nothing by which a repeated branch would be committed."""
    assert PrimarySettings().outcome_retention_ms >= CoordinatorLimits().outcome_ms + CLOCK_MS
