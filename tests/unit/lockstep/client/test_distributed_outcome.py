"""Commits over several participants that no coordinator answers, or that do not end as decided: what their client finds out."""

from typing import Any

import pytest

from lockstep.client import (
    Client,
    Hazard,
    HeuristicallyRolledBack,
    HeuristicHazard,
    InDoubt,
    Outcome,
    OutcomeState,
    Rejected,
    Session,
    TransactionState,
)
from lockstep.client.coordinators import Coordinators
from lockstep.client.distributed_outcome import outcome_of, resolved
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.heuristics import check_committed
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.records import RollbackReason
from lockstep.core.xa import XaStatus
from lockstep.wire.v1 import coordinator_pb2 as pb
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator

GLOBAL = "74" * 16
TAG = "12345678"
BRANCHES: dict[str, TransactionKey] = {
    "east/4.1": (LogIndex(4), Epoch(1)),
    "west/9.3": (LogIndex(9), Epoch(3)),
}
DOUBT = InDoubt(ErrorCode.UNAVAILABLE, "no coordinator has answered Commit")
KINDS = [Session.transaction, Session.distributed_transaction]
STATES = OutcomeState


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators are not waited for for long."""
    monkeypatch.setattr(Coordinators.call, "__defaults__", (0.3,))


async def work(transaction: Any) -> None:
    """In both sets."""
    await transaction.publish("a", b"x")
    await transaction.publish("c", b"y")


class Answers:
    """What sets and coordinators say of a transaction, by its name; None: nothing."""

    def __init__(self, **said: OutcomeState | None) -> None:
        self._said = dict(zip((*BRANCHES, GLOBAL), said.values(), strict=True))
        self.reasons: dict[str, int] = {}
        self.generations: dict[str, str] = {}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Outcome:
        self.asked.append(name)
        state = self._said[name]
        if state is None:
            raise Rejected(ErrorCode.UNAVAILABLE, f"nobody speaks for {name}")
        generation = self.generations.get(name, f"{TAG}-and-so-on")
        reason = self.reasons.get(name, 0)
        return Outcome(name, state, reason, Epoch(3), LogIndex(0), generation=generation)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.usefixtures("impatient")
async def test_a_commit_that_reached_no_coordinator_is_rolled_back_by_its_sets(
    coordinator: FakeCoordinator, session: Session, make: Any
) -> None:
    """P6: whoever fences one of its branches knows that it was not, and will not be."""
    transaction = make(session)
    await work(transaction)
    coordinator.silent = "Commit"
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert transaction.state is TransactionState.ROLLED_BACK


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.usefixtures("impatient")
async def test_a_commit_whose_branches_have_committed_is_committed(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, make: Any
) -> None:
    transaction = make(session)
    await work(transaction)
    coordinator.silent, broker.outcome = "Commit", int(STATES.COMMITTED)
    await transaction.commit()
    assert (transaction.state, transaction.was_in_doubt) == (TransactionState.COMMITTED, True)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.usefixtures("impatient")
async def test_who_is_left_in_doubt_is_told_whom_to_ask(
    broker: FakeBroker, coordinator: FakeCoordinator, client: Client, session: Session, make: Any
) -> None:
    transaction = make(session)
    await work(transaction)
    broker.outcome = int(STATES.PREPARED)
    coordinator.answers.clear()
    with pytest.raises(InDoubt) as raised:
        await transaction.commit()
    assert transaction.state is TransactionState.IN_DOUBT
    assert raised.value.details["transaction_id"] == transaction.id
    branches = raised.value.details["branches"]
    assert isinstance(branches, list)
    assert [name.split("/")[0] for name in branches] == ["one", "two"]
    coordinator.answers.set()
    for name, state in ((transaction.id, STATES.COMMITTED), (branches[0], STATES.PREPARED)):
        assert (await client.get_outcome(name, fence=True)).state is state


@pytest.mark.parametrize(
    ("east", "west", "coordinators", "outcome"),
    [
        (STATES.ROLLED_BACK, STATES.PREPARED, None, STATES.ROLLED_BACK),
        (None, STATES.ROLLED_BACK, None, STATES.ROLLED_BACK),
        (STATES.UNKNOWN, STATES.PREPARED, None, STATES.ROLLED_BACK),  # Its epoch is over: no log had it.
        (STATES.PREPARED, STATES.UNKNOWN, None, None),
        (STATES.COMMITTED, STATES.COMMITTED, None, STATES.COMMITTED),
        (STATES.COMMITTED, None, None, None),  # Without operations it commits when it is prepared.
        (STATES.COMMITTED, STATES.PREPARED, STATES.ROLLED_BACK, STATES.ROLLED_BACK),
        (STATES.PREPARED, STATES.PREPARED, STATES.COMMITTED, STATES.COMMITTED),
        (STATES.PREPARED, STATES.PREPARED, STATES.UNKNOWN, None),
        (STATES.PREPARED, STATES.PREPARED, STATES.OF_LATER_VERSION, None),
        (STATES.HEURISTICALLY_ROLLED_BACK, STATES.COMMITTED, None, None),
        (STATES.HEURISTICALLY_ROLLED_BACK, STATES.PREPARED, STATES.COMMITTED, STATES.COMMITTED),
        (STATES.EXPIRED, STATES.EXPIRED, None, None),
        (STATES.OF_LATER_VERSION, STATES.OF_LATER_VERSION, None, None),
    ],
)
async def test_branches_are_asked_first_and_coordinators_what_was_decided(
    east: OutcomeState, west: OutcomeState, coordinators: OutcomeState | None, outcome: OutcomeState | None
) -> None:
    answers = Answers(east=east, west=west, coordinators=coordinators)
    if outcome is None:
        with pytest.raises(InDoubt) as raised:
            await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)
        assert raised.value.details == {"transaction_id": GLOBAL, "branches": list(BRANCHES)}
    else:
        assert (await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)).state is outcome
    assert answers.asked[:2] == list(BRANCHES)


@pytest.mark.parametrize("decided", [STATES.COMMITTED, STATES.ROLLED_BACK, None])
async def test_a_branch_that_operators_rolled_back_does_not_speak_for_the_others(
    decided: OutcomeState | None,
) -> None:
    """It was prepared, and its heuristic end is forgotten."""
    answers = Answers(east=STATES.ROLLED_BACK, west=STATES.PREPARED, coordinators=decided)
    answers.reasons["east/4.1"] = RollbackReason.HEURISTIC
    if decided is None:
        with pytest.raises(InDoubt):
            await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)
    else:
        assert (await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)).state is decided


@pytest.mark.parametrize("decided", [STATES.COMMITTED, STATES.ROLLED_BACK, None])
@pytest.mark.parametrize("lost", [STATES.ROLLED_BACK, STATES.UNKNOWN])
async def test_a_branch_that_was_lost_with_accepted_loss_does_not_speak_for_the_others(
    lost: OutcomeState, decided: OutcomeState | None
) -> None:
    """It had voted; by the decision that followed the others have committed."""
    answers = Answers(east=lost, west=STATES.COMMITTED, coordinators=decided)
    answers.generations["east/4.1"] = "87654321-and-so-on"
    if decided is None:
        with pytest.raises(InDoubt):
            await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)
    else:
        assert (await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)).state is decided
    assert answers.asked[2:] == [GLOBAL]


async def test_a_broker_of_an_earlier_version_does_not_say_in_which_history_it_answers() -> None:
    answers = Answers(east=STATES.ROLLED_BACK, west=STATES.PREPARED, coordinators=None)
    answers.generations["east/4.1"] = ""
    assert (await resolved(answers, GLOBAL, TAG, BRANCHES, True, DOUBT)).state is STATES.ROLLED_BACK


async def test_the_only_set_of_a_transaction_speaks_for_it_whoever_ended_it_there() -> None:
    answers = Answers(east=STATES.ROLLED_BACK, west=None, coordinators=None)
    answers.reasons["east/4.1"] = RollbackReason.HEURISTIC
    only = {"east/4.1": BRANCHES["east/4.1"]}
    outcome = await resolved(answers, GLOBAL, TAG, only, True, DOUBT)
    assert (outcome.transaction_id, outcome.state) == ("east/4.1", STATES.ROLLED_BACK)


async def test_sets_that_have_committed_do_not_speak_for_a_database() -> None:
    answers = Answers(east=STATES.COMMITTED, west=STATES.COMMITTED, coordinators=None)
    with pytest.raises(InDoubt):
        await resolved(answers, GLOBAL, TAG, BRANCHES, False, DOUBT)
    assert answers.asked[2:] == [GLOBAL]


def ended(state: Any, heuristic: int) -> Outcome:
    hazards = [pb.Hazard(participant="set:east", ended="heuristically rolled back")] if heuristic else []
    answer = pb.CommitDistributedResponse(state=state, heuristic=heuristic, hazards=hazards)
    return outcome_of(GLOBAL, answer)


@pytest.mark.parametrize(
    ("state", "heuristic", "pending", "raises"),
    [
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.OK, [], None),
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.HEURCOM, [], None),
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.HEURRB, [], HeuristicallyRolledBack),
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.HEURRB, ["set:west"], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.HEURMIX, [], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_COMMITTED, XaStatus.HEURHAZ, [], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_COMMITTED, 99, [], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_ROLLED_BACK, XaStatus.OK, [], Rejected),
        (pb.DISTRIBUTED_STATE_ROLLED_BACK, XaStatus.HEURRB, [], Rejected),
        (pb.DISTRIBUTED_STATE_ROLLED_BACK, XaStatus.HEURMIX, [], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_ROLLED_BACK, XaStatus.HEURCOM, [], HeuristicHazard),
        (pb.DISTRIBUTED_STATE_UNDECIDED, XaStatus.OK, [], InDoubt),
        (99, XaStatus.OK, [], InDoubt),
    ],
)
def test_a_commit_returns_only_where_all_happened_and_is_rejected_only_where_nothing_did(
    state: Any, heuristic: int, pending: list[str], raises: type[Exception] | None
) -> None:
    if raises is None:
        check_committed(ended(state, heuristic), pending)
        return
    with pytest.raises(raises) as raised:
        check_committed(ended(state, heuristic), pending)
    assert type(raised.value) is raises


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("heuristic", "raises", "state"),
    [
        (XaStatus.HEURRB, HeuristicallyRolledBack, TransactionState.ROLLED_BACK),
        (XaStatus.HEURMIX, HeuristicHazard, TransactionState.IN_DOUBT),
        (XaStatus.HEURHAZ, HeuristicHazard, TransactionState.IN_DOUBT),
    ],
)
async def test_a_commit_that_operators_undid_raises_who_ended_how(
    coordinator: FakeCoordinator,
    session: Session,
    make: Any,
    heuristic: XaStatus,
    raises: type[Any],
    state: TransactionState,
) -> None:
    coordinator.hazards = {"set:one": "heuristically rolled back"}
    coordinator.heuristic = heuristic
    transaction = make(session)
    await work(transaction)
    with pytest.raises(raises) as raised:
        await transaction.commit()
    assert raised.value.heuristic is heuristic
    assert raised.value.hazards == (Hazard("set:one", "heuristically rolled back"),)
    assert (transaction.state, transaction.was_in_doubt) == (state, False)
    if isinstance(transaction, DistributedTransaction):
        assert transaction.heuristic is heuristic


@pytest.mark.usefixtures("impatient")
async def test_a_state_that_is_no_outcome_is_asked_for(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    """A coordinator of a later version may know more of them: none is taken for a rollback."""
    coordinator.state = 99
    broker.outcome = int(STATES.PREPARED)
    transaction = session.distributed_transaction()
    await work(transaction)
    with pytest.raises(InDoubt):
        await transaction.commit()
    assert coordinator.asked[-1] == "GetOutcome"


async def test_an_outcome_has_what_participants_did_against_it(
    client: Client, coordinator: FakeCoordinator
) -> None:
    coordinator.hazards, coordinator.heuristic = {"set:one": "unknown branch"}, XaStatus.HEURHAZ
    outcome = await client.get_outcome(GLOBAL)
    assert (outcome.state, outcome.heuristic) == (STATES.COMMITTED, XaStatus.HEURHAZ)
    assert outcome.hazards == (Hazard("set:one", "unknown branch"),)
