"""What becomes of the deliveries of a consumer's link."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from proton import Delivery, symbol

from lockstep.client.command_batches import COMMAND_POSITIONS_MAX
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from services.proxy import steps
from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.engine_words import StateCode
from services.proxy.outgoing_link import RETURNED_AT_ONCE, OutgoingLink
from services.proxy.reclaiming import VOIDED_AT_ONCE, Reclaims
from tests.unit.services.proxy.outgoing_rig import EPOCH, NAME, Rig, say_in_transaction


async def test_delivery_that_its_client_settled_meanwhile_is_not_answered() -> None:
    rig = Rig()
    first = rig.deliver()
    first.update(Delivery.ACCEPTED)
    rig.exchange()
    first.settle()
    rig.exchange()
    second = rig.deliver()
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == []
    second.update(Delivery.ACCEPTED)
    second.settle()
    rig.exchange()
    assert rig.broker.settled == [
        ((QueuePosition(1),), Disposition.ACCEPT),
        ((QueuePosition(2),), Disposition.ACCEPT),
    ]


async def test_retirement_that_is_confirmed_behind_the_end_of_its_transaction_is_not_answered() -> None:
    rig = Rig()
    transaction = rig.begin()
    first = rig.deliver()
    say_in_transaction(first, StateCode.ACCEPTED)
    rig.exchange()
    await transaction.rollback()
    rig.exchange()
    assert rig.heard == [("1", 0, True)]
    first.settle()
    second = rig.deliver()
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == [("1", 0, True)]
    assert not second.settled and second.remote_state == 0


async def test_accept_that_its_client_leaves_to_be_settled_is_settled_when_confirmed() -> None:
    rig = Rig()
    rig.deliver().update(Delivery.ACCEPTED)
    rig.exchange()
    assert rig.heard == []
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == [("1", StateCode.ACCEPTED, True)]


async def test_delivery_that_comes_again_after_a_failover_is_the_one_that_the_client_has() -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1, 2)
    rig.deliver_again(Epoch(2), 1, 2, 3)
    assert len(rig.received) == 3
    for delivery in (first, second):
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(1), QueuePosition(2)), Disposition.ACCEPT)]
    assert rig.broker.epochs == [Epoch(2)]


async def test_delivery_of_which_the_client_has_spoken_meanwhile_comes_again() -> None:
    rig = Rig()
    first = rig.deliver()
    rig.void(1)
    first.update(Delivery.ACCEPTED)
    first.settle()
    rig.exchange()
    assert len(rig.reclaims) == 0
    rig.deliver_again(EPOCH, 1)
    assert len(rig.received) == 2
    assert rig.broker.settled == []
    rig.received[-1].update(Delivery.ACCEPTED)
    rig.received[-1].settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


@pytest.mark.parametrize(
    "state", [StateCode.ACCEPTED, StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED]
)
async def test_what_the_client_says_of_a_void_delivery_is_answered_and_not_told(
    state: StateCode,
) -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1)
    for delivery in (first, second):
        delivery.local.undeliverable = state == StateCode.MODIFIED
        delivery.update(state)
    rig.exchange()
    assert [positions for positions, _ in rig.broker.settled] == [(QueuePosition(2),)]
    assert rig.heard[0] == ("1", 0, True)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_whoever_attaches_waits_for_a_consumer_that_ends_behind_rejects(is_lost: bool) -> None:
    """Until then its queue may be nobody else's."""
    rig = Rig()
    ending = rig.broker.ending = asyncio.get_running_loop().create_future()
    assert rig.link is not None
    rig.link.end(is_lost=is_lost)
    attaching = asyncio.ensure_future(rig.returning.over("q"))
    await asyncio.sleep(0)
    assert rig.broker.stopped == 1 and not attaching.done()
    ending.set_result(None)
    await attaching
    assert not rig.returning


@pytest.mark.parametrize("is_lost", [False, True])
async def test_void_delivery_is_not_given_back_when_the_link_ends(is_lost: bool) -> None:
    rig = Rig()
    for _ in range(2):
        rig.deliver()
    rig.void(1)
    assert rig.link is not None
    rig.link.end(is_lost=is_lost)
    disposition = Disposition.FAIL if is_lost else Disposition.RELEASE
    assert rig.broker.settled == [((QueuePosition(2),), disposition)]
    assert len(rig.reclaims) == 0


async def test_void_delivery_that_did_not_come_again_is_not_another_that_did() -> None:
    rig = Rig()
    first = rig.deliver()
    rig.void(1)
    assert len(rig.reclaims) == 1
    rig.deliver_again(Epoch(2), 5)
    for delivery in (first, rig.received[-1]):
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(5),), Disposition.ACCEPT)]
    assert rig.broker.epochs == [Epoch(2)]


async def test_delivery_that_came_again_to_another_link_is_void_when_the_session_says_so_there() -> None:
    reclaims = Reclaims()
    rig, other = Rig(reclaims), Rig(reclaims)
    first, second = rig.deliver(), rig.deliver()
    rig.void(1, 2)
    other.deliver_again(Epoch(2), 1, 2)
    assert other.received == []
    rig.begin()
    say_in_transaction(second, StateCode.REJECTED)
    rig.exchange()
    other.void(1, 2, epoch=Epoch(2))
    first.update(Delivery.ACCEPTED)
    rig.exchange()
    await rig.transactions[NAME].rollback()
    assert rig.broker.settled == []
    rig.exchange()
    assert sorted(rig.heard) == [("1", 0, True), ("2", 0, True)]


def having(count: int) -> Rig:
    """Whose client has so many."""
    rig = Rig(credit=count)
    for first in range(1, count + 1, 1_000):
        rig.deliver_again(EPOCH, *range(first, first + 1_000))
    assert len(rig.received) == count
    return rig


async def test_very_many_deliveries_become_void_in_pieces() -> None:
    count = 10 * VOIDED_AT_ONCE
    rig = having(count)
    link = rig.link
    assert link is not None
    asked = link._asked
    work = link.void(EPOCH, tuple(map(QueuePosition, range(1, count + 1))))
    known = [len(rig.reclaims)]
    for cost in work:
        known.append(len(rig.reclaims))
        assert cost > 0, "a step that costs nothing ends no piece"
        assert link._asked == asked + count, "they came out of its credit"
    assert known[-1] == count
    assert max(after - before for before, after in pairwise(known)) <= VOIDED_AT_ONCE
    # Once more, of another link: the session says so there.
    other = Rig(rig.reclaims)
    other.deliver_again(Epoch(2), *range(1, count + 1))
    assert not other.received and not len(rig.reclaims)
    assert other.link is not None
    known = [0]
    for cost in other.link.void(Epoch(2), tuple(map(QueuePosition, range(1, count + 1)))):
        known.append(len(rig.reclaims))
        assert cost > 0
    assert known[-1] == count
    assert max(after - before for before, after in pairwise(known)) <= VOIDED_AT_ONCE


async def test_what_is_void_is_gathered_in_pieces_though_its_client_has_nothing_of_it() -> None:
    rig = Rig()
    count = 10 * VOIDED_AT_ONCE
    assert rig.link is not None
    pieces = list(rig.link.void(EPOCH, tuple(map(QueuePosition, range(1, count + 1)))))
    assert len(pieces) == 10 and min(pieces) > 0


async def test_link_that_ends_amid_that_leaves_nobody_expecting_it() -> None:
    count = 3 * VOIDED_AT_ONCE
    rig = having(count)
    assert rig.link is not None
    work = rig.link.void(EPOCH, tuple(map(QueuePosition, range(1, count + 1))))
    while len(rig.reclaims) < VOIDED_AT_ONCE:
        next(work)
    rig.link.end(is_lost=False)
    await asyncio.wait(rig.works_run)
    for _ in work:
        pass
    assert len(rig.reclaims) == 0
    returned = [position for positions, _ in rig.broker.settled for position in positions]
    assert sorted(returned) == list(range(VOIDED_AT_ONCE + 1, count + 1)), "the broker refuses them"


# --- in transactions ---


def say_of_two(rig: Rig, outcome: StateCode, is_void_before: bool) -> None:
    """The client's outcome of two deliveries, of which the first is void before it is said or behind that."""
    deliveries = (rig.deliver(), rig.deliver())
    if is_void_before:
        rig.void(1)
    for delivery in deliveries:
        say_in_transaction(delivery, outcome)
    rig.exchange()
    if not is_void_before:
        rig.void(1)


@pytest.mark.parametrize("is_said_before", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.ACCEPTED, StateCode.REJECTED])
async def test_what_is_still_to_be_told_void_fails_the_commit(
    outcome: StateCode, is_said_before: bool
) -> None:
    """Others are told first, in pieces: the broker is not asked meanwhile."""
    rig = Rig()
    transaction = rig.begin()
    posted = asyncio.Event()
    transaction.wait_for(posted)
    delivery = rig.deliver()
    if is_said_before:
        say_in_transaction(delivery, outcome)
        rig.exchange()
    rig.broker.over_before = Epoch(2)
    if not is_said_before:
        say_in_transaction(delivery, outcome)
        rig.exchange()
    posted.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert not [one for one in rig.broker.settled if one[1] != Disposition.RELEASE]


async def test_what_is_said_amid_the_voiding_of_many_is_void_behind_it() -> None:
    rig = Rig()
    transaction = rig.begin()
    deliveries = [rig.deliver() for _ in range(5)]
    assert rig.link is not None
    work = rig.link.void(EPOCH, tuple(map(QueuePosition, range(1, 6))))
    for delivery in deliveries:
        say_in_transaction(delivery, StateCode.REJECTED)
        rig.exchange()
        next(work, None)
    assert next(work, None) is None
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert rig.broker.settled == []


@pytest.mark.parametrize("is_void_before", [True, False])
async def test_void_delivery_is_not_accepted_in_a_transaction_and_fails_its_commit(
    is_void_before: bool,
) -> None:
    rig = Rig()
    transaction = rig.begin()
    posted = asyncio.Event()
    transaction.wait_for(posted)
    say_of_two(rig, StateCode.ACCEPTED, is_void_before)
    posted.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    # The other one goes back to the queue.
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    rig.exchange()
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


@pytest.mark.parametrize("is_void_before", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED])
async def test_end_of_a_transaction_gives_back_nothing_void(outcome: StateCode, is_void_before: bool) -> None:
    rig = Rig()
    transaction = rig.begin()
    say_of_two(rig, outcome, is_void_before)
    await transaction.rollback()
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    rig.exchange()
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


async def test_void_delivery_in_a_transaction_that_is_not_open_is_answered_and_not_told() -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1)
    for delivery in (first, second):
        say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SESSION, ErrorCode.UNAVAILABLE])
@pytest.mark.parametrize("lost_sessions", [0, 1])
async def test_accept_that_was_under_way_when_the_session_was_lost_is_not_given_back(
    code: ErrorCode, lost_sessions: int
) -> None:
    rig = Rig()
    rig.begin()
    say_in_transaction(rig.deliver(), StateCode.ACCEPTED)
    rig.exchange()
    await asyncio.sleep(0)
    rig.broker.lost_sessions = lost_sessions
    rig.broker.confirmations[0].set_exception(Rejected(code, "refused"))
    await asyncio.sleep(0)
    assert rig.broker.settled[1:] == [((QueuePosition(1),), Disposition.RELEASE)] * (1 - lost_sessions)


@pytest.mark.parametrize("is_void_before", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED])
async def test_void_delivery_fails_the_commit_that_was_to_reject_it(
    outcome: StateCode, is_void_before: bool
) -> None:
    rig = Rig()
    transaction = rig.begin()
    say_of_two(rig, outcome, is_void_before)
    if outcome == StateCode.REJECTED:
        with pytest.raises(Rejected) as raised:
            await transaction.commit()
        assert raised.value.code is ErrorCode.ROLLED_BACK
    else:
        await transaction.commit()
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]


@pytest.mark.parametrize("has_failed", [True, False])
async def test_what_a_client_says_of_what_it_gives_back_is_told(has_failed: bool) -> None:
    rig = Rig()
    for delivery in (rig.deliver(), rig.deliver()):
        delivery.local.failed = has_failed
        delivery.local.annotations = {symbol("a"): True}
        delivery.update(StateCode.MODIFIED)
    rig.exchange()
    disposition = Disposition.FAIL if has_failed else Disposition.RELEASE
    assert rig.broker.settled == [((QueuePosition(1), QueuePosition(2)), disposition)]
    assert rig.broker.annotations == [b"\xa3\x01a\x41"]


@pytest.mark.parametrize("lost_sessions", [0, 1])
async def test_what_is_too_much_to_be_kept_goes_back_without_it_unless_its_session_is_lost(
    lost_sessions: int,
) -> None:
    rig = Rig()
    delivery = rig.deliver()
    delivery.local.annotations = {symbol("a"): True}
    delivery.update(StateCode.MODIFIED)
    rig.exchange()
    rig.broker.lost_sessions = lost_sessions
    rig.broker.confirmations[0].set_exception(Rejected(ErrorCode.TOO_LARGE, "too much"))
    await asyncio.sleep(0)
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.RELEASE)] * (2 - lost_sessions)
    assert rig.broker.annotations == [b"\xa3\x01a\x41", b""][: 2 - lost_sessions]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_what_a_client_says_in_a_transaction_is_told_if_it_commits(is_committed: bool) -> None:
    rig = Rig()
    transaction = rig.begin()
    say_in_transaction(rig.deliver(), StateCode.MODIFIED, [True, None, {symbol("a"): True}])
    rig.exchange()
    await (transaction.commit() if is_committed else transaction.rollback())
    assert rig.broker.annotations == [b"\xa3\x01a\x41" if is_committed else b""]


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("has_failed", [True, False])
async def test_undeliverable_here_keeps_it_from_the_link_if_it_commits(
    has_failed: bool, is_committed: bool
) -> None:
    rig = Rig()
    transaction = rig.begin()
    say_in_transaction(rig.deliver(), StateCode.MODIFIED, [has_failed, True])
    rig.exchange()
    await (transaction.commit() if is_committed else transaction.rollback())
    disposition = Disposition.FAIL if has_failed and is_committed else Disposition.RELEASE
    assert rig.broker.settled == [((QueuePosition(1),), disposition)]
    assert rig.broker.excluded == [1 if is_committed else 0]


@pytest.mark.parametrize("state", [None, StateCode.RECEIVED])
async def test_what_is_said_in_a_transaction_without_an_outcome_leaves_the_delivery_to_the_client(
    state: StateCode | None,
) -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    say_in_transaction(delivery, state)
    rig.exchange()
    await transaction.commit()
    rig.exchange()
    assert rig.broker.settled == [] and rig.heard == []
    delivery.update(Delivery.ACCEPTED)
    delivery.settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


async def test_end_of_a_transaction_gives_back_nothing_of_a_session_that_was_lost_behind_the_end_of_the_link() -> (
    None
):
    rig = Rig()
    transaction = rig.begin()
    say_in_transaction(rig.deliver(), StateCode.RELEASED)
    rig.exchange()
    assert rig.link is not None
    rig.link.end(is_lost=False)
    rig.broker.lost_sessions += 1
    await transaction.commit()
    assert rig.broker.settled == []


@pytest.mark.parametrize("is_link_over", [True, False])
async def test_a_delivery_whose_session_is_lost_while_its_transaction_begins_in_the_set_is_not_accepted(
    is_link_over: bool,
) -> None:
    """The next session may hold it by the same name, for another client. A link that is over does not hear that it is void."""
    rig = Rig()
    transaction = rig.begin()
    work = rig.works[-1]
    work.begins.clear()
    say_in_transaction(rig.deliver(), StateCode.ACCEPTED)
    rig.exchange()
    await asyncio.sleep(0)
    assert rig.link is not None
    if is_link_over:
        rig.link.end(is_lost=False)
    else:
        rig.void(1)
    rig.broker.lost_sessions += 1
    work.begins.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert rig.broker.settled == []


async def test_a_delivery_whose_session_is_lost_behind_the_end_of_its_link_is_not_rejected_by_a_commit() -> (
    None
):
    rig = Rig()
    transaction = rig.begin()
    say_in_transaction(rig.deliver(), StateCode.REJECTED)
    rig.exchange()
    assert rig.link is not None
    rig.link.end(is_lost=False)
    rig.broker.lost_sessions += 1
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert rig.broker.settled == []


@pytest.mark.parametrize("name", [NAME, b"another"])
@pytest.mark.parametrize(
    "outcome", [StateCode.ACCEPTED, StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED]
)
async def test_what_a_browser_says_in_a_transaction_is_not_told(outcome: StateCode, name: bytes) -> None:
    for is_committed in (True, False):
        rig = Rig(is_browser=True)
        transaction = rig.begin()
        say_in_transaction(rig.deliver(), outcome, name=name)
        rig.exchange()
        assert rig.heard == [("1", 0, True)]
        await (transaction.commit() if is_committed else transaction.rollback())
        assert rig.broker.settled == []


# --- more than one command takes ---


def delivered(rig: Rig, count: int) -> list[Delivery]:
    for first in range(1, count + 1, 1000):
        rig.deliver_again(EPOCH, *range(first, min(first + 1000, count + 1)))
    return rig.received


async def test_outcomes_that_go_in_two_commands_are_confirmed_each_by_its_own() -> None:
    rig = Rig(credit=COMMAND_POSITIONS_MAX + 1)
    for delivery in delivered(rig, COMMAND_POSITIONS_MAX + 1):
        delivery.update(Delivery.ACCEPTED)
    rig.exchange()
    assert [len(positions) for positions, _ in rig.broker.settled] == [COMMAND_POSITIONS_MAX, 1]
    rig.broker.confirmations[0].set_exception(Rejected(ErrorCode.STALE_DELIVERY, "stale"))
    rig.broker.confirmations[1].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    told = {tag: state for tag, state, _ in rig.heard}
    assert len(told) == COMMAND_POSITIONS_MAX + 1
    accepted = [tag for tag, state in told.items() if state == StateCode.ACCEPTED]
    assert accepted == [str(COMMAND_POSITIONS_MAX + 1)]


async def test_of_what_two_commands_accept_in_a_transaction_only_what_was_refused_is_given_back() -> None:
    rig = Rig(credit=COMMAND_POSITIONS_MAX + 1)
    rig.begin()
    for delivery in delivered(rig, COMMAND_POSITIONS_MAX + 1):
        say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    await asyncio.sleep(0.01)
    assert [len(positions) for positions, _ in rig.broker.settled] == [COMMAND_POSITIONS_MAX, 1]
    rig.broker.confirmations[0].set_result(COMMAND_POSITIONS_MAX)
    rig.broker.confirmations[1].set_exception(Rejected(ErrorCode.STALE_DELIVERY, "stale"))
    await asyncio.sleep(0)
    last = QueuePosition(COMMAND_POSITIONS_MAX + 1)
    assert rig.broker.settled[2:] == [((last,), Disposition.RELEASE)]


# --- what its client is told ---


async def test_a_consumer_too_many_is_the_broker_s_limit_and_not_a_message_s_size() -> None:
    rig = Rig()
    assert rig.link is not None
    rig.link.stop(ErrorCode.TOO_LARGE, "a session has at most 2 consumers")
    assert [condition.name for condition in rig.ended] == [RESOURCE_LIMIT]


async def test_what_is_left_does_not_go_back_once_its_session_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one may hold it, by the same name, for another client."""
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    count = 5 * RETURNED_AT_ONCE
    rig = Rig(credit=count)
    assert rig.link is not None
    rig.deliver_again(EPOCH, *range(1, count + 1))
    rig.link.end(is_lost=True)
    assert len(rig.returning) == 1, "whoever attaches waits"
    while not rig.broker.settled:
        await asyncio.sleep(0)
    given = sum(len(positions) for positions, _ in rig.broker.settled)
    assert 0 < given <= 2 * RETURNED_AT_ONCE, "the rest goes in later turns"
    assert rig.broker.stopped == 0
    rig.broker.lost_sessions += 1
    await asyncio.gather(*rig.works_run)
    assert sum(len(positions) for positions, _ in rig.broker.settled) == given
    for confirmation in rig.broker.confirmations:
        confirmation.set_result(1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not len(rig.returning)
    assert rig.broker.stopped == 1


async def test_what_is_left_goes_back_in_order_and_nothing_of_it_is_expected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    count = 5 * RETURNED_AT_ONCE
    rig = Rig(credit=count)
    assert rig.link is not None
    rig.deliver_again(EPOCH, *range(1, count + 1))
    rig.void(*range(1, count // 2 + 1))
    rig.link.end(is_lost=False)
    await asyncio.gather(*rig.works_run)
    positions = [position for some, _ in rig.broker.settled for position in some]
    assert positions == list(range(count // 2 + 1, count + 1))
    assert not len(rig.reclaims)


# --- while links are told that their session is lost ---


def lose(rig: Rig) -> None:
    """The session, and others are told first: the link has still to hear of it."""
    rig.broker.lost_sessions += 1
    rig.broker.untold_losses += 1


def tell(rig: Rig, *positions: int) -> None:
    """All links have heard of it; this one, that these are void."""
    if positions:
        rig.void(*positions)
    rig.broker.untold_losses -= 1


@pytest.mark.parametrize("is_told_before_the_commit", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.ACCEPTED, StateCode.REJECTED])
async def test_what_is_said_in_a_transaction_of_a_lost_session_fails_its_commit_though_the_link_has_not_heard(
    outcome: StateCode, is_told_before_the_commit: bool
) -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    lose(rig)
    say_in_transaction(delivery, outcome)
    rig.exchange()
    if is_told_before_the_commit:
        tell(rig, 1)
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert rig.broker.settled == []


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.RELEASED, StateCode.MODIFIED, StateCode.REJECTED])
async def test_what_is_said_in_a_transaction_meanwhile_gives_nothing_back(
    outcome: StateCode, is_committed: bool
) -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    lose(rig)
    say_in_transaction(delivery, outcome)
    rig.exchange()
    if is_committed and outcome is not StateCode.REJECTED:
        await transaction.commit()
    else:
        await transaction.rollback()
    tell(rig)
    assert rig.broker.settled == []


async def test_a_link_that_ends_meanwhile_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither now nor behind that: the next session may hold it, by the same name, for another client."""
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    count = 3 * RETURNED_AT_ONCE
    rig = Rig(credit=count)
    assert rig.link is not None
    rig.deliver_again(EPOCH, *range(1, count + 1))
    lose(rig)
    rig.link.end(is_lost=True)
    tell(rig)
    await asyncio.gather(*rig.works_run)
    assert rig.broker.settled == []


async def test_what_was_refused_for_its_annotations_meanwhile_is_not_told_without_them() -> None:
    rig = Rig()
    delivery = rig.deliver()
    lose(rig)
    delivery.local.annotations = {symbol("a"): True}
    delivery.update(StateCode.MODIFIED)
    rig.exchange()
    tell(rig)
    rig.broker.confirmations[0].set_exception(Rejected(ErrorCode.TOO_LARGE, "too much"))
    await asyncio.sleep(0)
    assert len(rig.broker.settled) == 1, "which the batches refuse"


def end_epoch(rig: Rig) -> None:
    """It is over, and others are told first."""
    rig.broker.over_before = Epoch(EPOCH + 1)


def presettled(credit: int) -> tuple[Rig, OutgoingLink]:
    """Its client settles nothing: what it has counts as accepted, which is refused of what is void."""
    rig = Rig(credit=credit)
    link = rig.link
    assert link is not None
    link._is_presettled = True
    return rig, link


def tell_all(rig: Rig, position: int) -> None:
    """The link, too, has heard of what has happened: that this is void."""
    rig.void(position)
    rig.broker.untold_losses, rig.broker.over_before = 0, Epoch(0)


@pytest.mark.parametrize("happens", [lose, end_epoch])
async def test_what_waits_meanwhile_is_not_sent_to_a_client_that_settles_nothing(
    happens: Callable[[Rig], None],
) -> None:
    """It would get it twice."""
    rig, link = presettled(credit=0)
    rig.deliver_messages(EPOCH, (1, b"x"))
    happens(rig)
    rig._receiver.flow(5)
    rig.exchange()
    link.flow()
    assert rig.received == [] and rig.broker.settled == []
    tell_all(rig, 1)
    rig.deliver_messages(Epoch(EPOCH + 1), (1, b"x"))
    assert len(rig.received) == 1 and rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


@pytest.mark.parametrize("happens", [lose, end_epoch])
async def test_what_is_being_sent_meanwhile_gets_no_end_for_a_client_that_settles_nothing(
    happens: Callable[[Rig], None],
) -> None:
    rig, link = presettled(credit=5)
    rig.deliver_messages(EPOCH, (1, bytes(600_000)))
    happens(rig)
    for _ in range(5):
        link.resume()
        rig.exchange()
    assert link._deliveries.begun is not None and rig.broker.settled == []
    tell_all(rig, 1)
    rig.exchange()
    assert link._deliveries.begun is None and rig.broker.settled == [] and not rig.rests.held


async def test_a_browser_that_settles_nothing_is_shown_what_waits_meanwhile() -> None:
    """Nobody shows it twice."""
    rig = Rig(credit=0, is_browser=True)
    assert rig.link is not None
    rig.link._is_presettled = True
    rig.deliver_messages(EPOCH, (1, b"x"))
    lose(rig)
    rig._receiver.flow(5)
    rig.exchange()
    rig.link.flow()
    rig.exchange()
    assert len(rig.received) == 1


@pytest.mark.parametrize("happens", [lose, end_epoch])
async def test_a_client_that_drains_meanwhile_is_answered(happens: Callable[[Rig], None]) -> None:
    """The answer to the first drain is heard when something waits, of which the link has still to hear that it is void."""
    rig, link = presettled(credit=0)
    rig._receiver.drain(5)
    rig.exchange()
    link.flow()
    happens(rig)
    rig.deliver_messages(EPOCH, (1, b"x"))
    link.drained()
    rig.exchange()
    assert rig._receiver.credit == 5
    tell_all(rig, 1)
    assert rig.broker.drains == 2
    link.drained()
    rig.exchange()
    assert rig._receiver.credit == 0


async def test_a_link_that_ends_while_it_hears_what_is_void_is_drained_no_more() -> None:
    rig, link = presettled(credit=0)
    rig._receiver.drain(5)
    rig.exchange()
    work = link.void(EPOCH, (QueuePosition(1),))
    next(work)
    link.end(is_lost=False)
    for _ in work:
        pass
    assert rig.broker.drains == 0


async def test_what_is_void_of_a_link_that_is_being_drained_asks_for_no_other_drain() -> None:
    rig, link = presettled(credit=0)
    rig._receiver.drain(5)
    rig.exchange()
    link.flow()
    rig.void(1)
    link.drained()
    rig.exchange()
    assert (rig.broker.drains, rig._receiver.credit) == (1, 0)


async def test_few_that_wait_are_looked_for_and_not_all_that_are_void() -> None:
    rig = Rig(credit=0)
    link = rig.link
    assert link is not None
    rig.deliver_again(EPOCH, 3, 7, 11)
    work = link.void(EPOCH, (QueuePosition(3), QueuePosition(4), QueuePosition(11)))
    next(work)
    assert [message.position for _, message in link._waiting] == [7]


async def test_what_came_again_in_the_next_epoch_is_not_void_with_what_it_was_before() -> None:
    rig, link = presettled(credit=1)
    again = Epoch(EPOCH + 1)
    rig.deliver_messages(again, (1, bytes(600_000)), (2, b"x"))
    rig.void(1, 2, epoch=EPOCH)
    assert link._deliveries.begun is not None
    assert [message.position for _, message in link._waiting] == [2]
    rig.void(1, 2, epoch=again)
    assert link._deliveries.begun is None and not link._waiting
