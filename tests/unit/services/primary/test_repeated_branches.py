"""A branch whose name was used before: our coordinator gives a name once, other transaction managers may use one again."""

import pytest

from lockstep.core.branch_names import (
    GLOBAL_ID_BYTES,
    RANDOM_BYTES,
    GlobalId,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.decision_log import CLOCK_MS, LogView, OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import TransactionKey
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
    return client.branch(xid, publish("q", b"once"))


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
    client.branch(OURS)
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
    # As an older version leaves it; no branch of the name could be begun otherwise.
    rig.state.outcomes.name_horizon_ms = 0
    again = worker(rig)
    key = work(again, OURS)
    again.ok(PrepareBranchCommand(0, OURS))
    rig.pass_time(6_000)
    asked = rig.questions.pop(0)
    view = LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms))
    rig.feed(DecisionHeard(SET, asked.request, asked.transaction, view))
    assert key not in {buffer.key for buffer in rig.state.transactions.prepared()}
    assert rig.bodies("q") == [b"once"]


RETENTION_MS = 10_000
FORGETFUL = {
    "retention": PrimarySettings(outcome_retention_ms=RETENTION_MS),
    "too many": PrimarySettings(outcomes_max=1),
}


def named(begun_ms: int, chance: bytes = bytes(RANDOM_BYTES)) -> bytes:
    return branch_xid(new_global_id(begun_ms, chance), 0, generation_tag(GENERATION)).encode()


def forgetful(how: str) -> tuple[Rig, RigClient]:
    """A set that soon forgets outcomes, by one of `FORGETFUL`, and a client that may work in branches."""
    rig = Rig(FORGETFUL[how])
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    return rig, client


def have_forgotten(rig: Rig, client: RigClient, xid: bytes, *ends: AnyCommand) -> None:
    """A branch of this name was begun, and ended; and so much has happened since that its outcome has gone."""
    work(client, xid)
    for command in ends or (PrepareBranchCommand(0, xid), CommitBranchCommand(0, xid)):
        client.ok(command)
    for _ in range(2 * RETENTION_MS // 1_000):
        client.commit(client.begin(), 0)
        rig.pass_time(1_000)


@pytest.mark.parametrize("settings", FORGETFUL.values(), ids=FORGETFUL)
def test_a_name_whose_end_may_be_forgotten_is_not_used_again(settings: PrimarySettings) -> None:
    """The decision may still be in the log, which another participant has not acknowledged."""
    rig = Rig(settings)
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    xid = named(rig.wall_ms)
    have_forgotten(rig, client, xid)
    assert rig.state.outcomes.find_xid(xid) is None
    for one in (rig, Rig(settings, predecessor=rig, is_restarted=True)):
        again = worker(one)
        answer = again.do(StartCommand(0, xid))
        assert (answer.code, "forgotten" in answer.message) == (ErrorCode.NOT_ALLOWED, True)
        assert again.do(StartCommand(0, xid, transaction=again.begin())).code is ErrorCode.NOT_ALLOWED
        work(again, named(one.wall_ms - 1_000))
        assert one.bodies("q") == [b"once"]


@pytest.mark.parametrize("end", ["in one phase", "read only"])
def test_a_name_is_not_used_again_however_its_branch_committed(end: str) -> None:
    rig = Rig(FORGETFUL["retention"])
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0, hears_read_only=True))
    xid = named(rig.wall_ms)
    if end == "in one phase":
        have_forgotten(rig, client, xid, CommitBranchCommand(0, xid, True))
    else:
        client.branch(xid)
        client.ok(PrepareBranchCommand(0, xid))
        have_forgotten(rig, client, FOREIGN)
    assert worker(rig).do(StartCommand(0, xid)).code is ErrorCode.NOT_ALLOWED


def test_the_name_of_a_branch_that_an_operator_ended_is_not_used_again_when_that_is_forgotten() -> None:
    rig, client = forgetful("retention")
    xid = named(rig.wall_ms)
    have_forgotten(rig, client, xid, PrepareBranchCommand(0, xid), EndHeuristicallyCommand(0, xid, True))
    assert worker(rig).do(StartCommand(0, xid)).code is ErrorCode.NOT_ALLOWED
    client.ok(ForgetBranchCommand(0, xid))
    assert rig.state.outcomes.find_xid(xid) is None
    assert worker(rig).do(StartCommand(0, xid)).code is ErrorCode.NOT_ALLOWED


def test_an_xid_of_another_transaction_manager_is_used_again_when_its_end_is_forgotten() -> None:
    """It looks after its names, and no log of ours ends what it prepares."""
    rig, client = forgetful("retention")
    have_forgotten(rig, client, named(rig.wall_ms))
    for _ in range(2):
        have_forgotten(rig, client, FOREIGN)


def test_a_name_of_the_future_has_no_others_refused() -> None:
    """A client can make such a name by itself; every other transaction would be older than that for half an hour."""
    rig, client = forgetful("too many")
    have_forgotten(rig, client, named(rig.wall_ms + 1_800_000))
    work(client, named(rig.wall_ms))


def test_a_horizon_of_a_clock_that_was_far_ahead_is_given_up() -> None:
    """Coordinators and brokers had the wrong year, while outcomes were forgotten, and have the right one again."""
    rig, client = forgetful("retention")
    years_ms = 10 * 365 * 24 * 3_600_000
    rig.wall_ms += years_ms
    have_forgotten(rig, client, named(rig.wall_ms))
    rig.wall_ms -= years_ms
    xid = named(rig.wall_ms)
    have_forgotten(rig, client, xid)
    assert worker(rig).do(StartCommand(0, xid)).code is ErrorCode.NOT_ALLOWED, "it protects again"
    work(client, named(rig.wall_ms))


def test_a_broker_whose_clock_fell_back_takes_no_used_name() -> None:
    rig, client = forgetful("too many")
    xid = named(rig.wall_ms)
    work(client, xid)
    for command in (PrepareBranchCommand(0, xid), CommitBranchCommand(0, xid)):
        client.ok(command)
    rig.wall_ms -= rig.core.context.settings.outcome_retention_ms // 2
    for _ in range(3):
        client.commit(client.begin(), 0)
        rig.pass_time(1_000)
    assert rig.state.outcomes.find_xid(xid) is None
    assert worker(rig).do(StartCommand(0, xid)).code is ErrorCode.NOT_ALLOWED


def test_a_set_knows_how_a_branch_ended_for_longer_than_the_decision_log_does() -> None:
    """Behind that the log has nothing by which a repeated branch would be committed."""
    assert PrimarySettings().outcome_retention_ms >= CoordinatorLimits().outcome_ms + CLOCK_MS
