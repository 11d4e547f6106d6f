"""A batch of several callers that was refused: who hears it, who is tried again, and behind what."""

import pytest

from lockstep.client import session_events as e
from lockstep.client.command_batches import (
    BATCH_MESSAGES_MAX,
    REFUSED_KEPT_MAX,
    REFUSED_PARTS_MAX,
    CommandBatches,
    Confirmation,
    RefusedTogether,
)
from lockstep.client.command_window import MESSAGE_BYTES
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from tests.unit.lockstep.client.test_command_batches import TX, Writing, batches, message, told

FULL = Rejected(ErrorCode.QUEUE_FULL, "full")
TOO_MUCH = Rejected(ErrorCode.TOO_LARGE, "too much at once")
UNSAYABLE = Rejected(ErrorCode.INVALID_ARGUMENT, "it cannot be said")
"""Told when it is to be written: what was submitted before may not be answered by then."""


def burst(
    made: CommandBatches, count: int, callers: int = 2, exchange: str = "topics"
) -> list[list[Confirmation]]:
    """So many batches under way, each of so many callers with a message each."""
    confirmations = []
    for batch in range(count):
        texts = [f"{batch}.{caller}" for caller in range(callers)]
        confirmations.append([made.publish(exchange, "k", [message(text)], None) for text in texts])
        made.flush()
    return confirmations


def bodies(session: Writing, first: int) -> list[list[bytes]]:
    """What commands bring, from the first one on."""
    commands = [each for each in session.submitted[first:] if isinstance(each, c.PublishCommand)]
    return [[each.body for each in command.messages] for command in commands]


def errors(callers: list[Confirmation]) -> list[BaseException | None]:
    return [caller.exception() for caller in callers]


@pytest.mark.parametrize("in_order", [True, False])
async def test_each_callers_part_is_tried_alone_if_nothing_was_sent_since(in_order: bool) -> None:
    session, made = batches(in_order=in_order)
    first = made.publish("", "a", [message("1")] * 3, None)
    second = made.publish("", "a", [message("2")] * 2, None)
    made.flush()
    session.heard[0](FULL)
    assert told(session.submitted) == [">a:5", ">a:3", ">a:2"]
    session.heard[1](FULL)
    session.heard[2](e.Done(2))
    assert repr(first.exception()) == repr(FULL)
    assert second.result() == 2


@pytest.mark.parametrize(("in_order", "kind"), [(True, Rejected), (False, RefusedTogether)])
async def test_no_part_comes_behind_what_was_sent_to_its_queue_since(
    in_order: bool, kind: type[Rejected]
) -> None:
    session, made = batches(in_order=in_order)
    callers = [made.publish("", "a", [message("x")], None) for _ in range(2)]
    made.flush()
    made.publish("", "a", [message("later")], None)
    made.flush()
    session.heard[0](FULL)
    assert told(session.submitted) == [">a:2", ">a:1"]
    assert [type(caller.exception()) for caller in callers] == [kind, kind]


async def test_nor_behind_what_went_to_its_queue_with_a_commit() -> None:
    session, made = batches()
    callers = [made.publish("", "a", [message("x")], None) for _ in range(2)]
    made.flush()
    made.publish("", "a", [message("later")], TX)
    last = made.flush_but_last_publish(TX)
    session.heard[0](FULL)
    assert told(session.submitted) == [">a:2"]
    assert [type(caller.exception()) for caller in callers] == [Rejected, Rejected]
    assert last is not None
    last[1](e.Done(0))
    assert not made._under_way


async def test_nor_behind_what_may_reach_its_queue_by_another_key() -> None:
    session, made = batches(in_order=False)
    for key in ("k1", "k2"):
        for _ in range(2):
            made.publish("topics", key, [message("x")], None)
        made.flush()
    session.heard[0](FULL)
    assert told(session.submitted) == ["topics>k1:2", "topics>k2:2"]


async def test_what_is_tried_again_goes_before_what_gathers_and_is_answered_for_good() -> None:
    session, made = batches(in_order=False)
    made.publish("", "a", [message("later")], None)
    again = made.publish_alone("", "a", [message("x")])
    assert told(session.submitted) == [">a:1"]
    made.flush()
    session.heard[0](FULL)
    assert len(session.submitted) == 2
    assert repr(again.exception()) == repr(FULL)


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_was_refused_with_all_that_was_sent_behind_it_is_tried_apart_in_its_order(
    in_order: bool,
) -> None:
    session, made = batches(in_order=in_order)
    confirmations = burst(made, 3)
    for each in range(2):
        session.heard[each](TOO_MUCH)
    assert len(session.submitted) == 3 and not any(each.done() for one in confirmations for each in one)
    session.heard[2](TOO_MUCH)
    assert bodies(session, 3) == [[b"0.0"], [b"0.1"], [b"1.0"], [b"1.1"], [b"2.0"], [b"2.1"]]
    for each in range(3, 9):
        session.heard[each](TOO_MUCH if each == 4 else e.Done(1))
    assert [errors(one).count(None) for one in confirmations] == [1, 2, 2]
    assert len(session.submitted) == 9


async def test_a_caller_that_was_refused_alone_behind_it_is_none_that_it_must_not_come_behind() -> None:
    session, made = batches()
    [first] = burst(made, 1)
    [second] = burst(made, 1, callers=1)
    session.heard[0](TOO_MUCH)
    session.heard[1](TOO_MUCH)
    assert bodies(session, 2) == [[b"0.0"], [b"0.1"]]
    assert [repr(each) for each in errors(second)] == [repr(TOO_MUCH)]
    assert not any(each.done() for each in first)


@pytest.mark.parametrize(("in_order", "kind"), [(True, Rejected), (False, RefusedTogether)])
@pytest.mark.parametrize("behind", [e.Done(2), InDoubt(ErrorCode.UNAVAILABLE, "no primary")])
async def test_what_was_refused_before_something_that_may_have_happened_is_refused_for_good(
    behind: e.CommandAnswer, in_order: bool, kind: type[Rejected]
) -> None:
    session, made = batches(in_order=in_order)
    confirmations = burst(made, 3)
    session.heard[0](TOO_MUCH)
    session.heard[1](behind)
    assert [type(each) for each in errors(confirmations[0])] == [kind, kind]
    session.heard[2](TOO_MUCH)
    assert bodies(session, 3) == [[b"2.0"], [b"2.1"]]


async def test_no_batch_waits_for_more_than_some_that_were_sent_behind_it() -> None:
    session, made = batches()
    confirmations = burst(made, REFUSED_KEPT_MAX + 2)
    for each in range(REFUSED_KEPT_MAX + 1):
        session.heard[each](TOO_MUCH)
    assert [one[0].done() for one in confirmations] == [True] + [False] * (REFUSED_KEPT_MAX + 1)
    session.heard[REFUSED_KEPT_MAX + 1](TOO_MUCH)
    assert len(bodies(session, REFUSED_KEPT_MAX + 2)) == 2 * (REFUSED_KEPT_MAX + 1)


async def test_what_is_tried_apart_is_not_so_much_in_one_step_however_many_callers_were_joined() -> None:
    session, made = batches()
    confirmations = burst(made, 4, BATCH_MESSAGES_MAX, exchange="")
    for each in range(3):
        session.heard[each](TOO_MUCH)
    assert REFUSED_PARTS_MAX == BATCH_MESSAGES_MAX
    assert [one[0].done() for one in confirmations] == [True, True, False, False]
    session.heard[3](TOO_MUCH)
    assert len(session.submitted) == 4 + REFUSED_PARTS_MAX + BATCH_MESSAGES_MAX


async def test_what_waits_for_one_target_leaves_less_to_others() -> None:
    session, made = batches()
    first = [
        *burst(made, 2, BATCH_MESSAGES_MAX, exchange=""),
        *burst(made, 2, exchange="other"),
    ]
    session.heard[0](TOO_MUCH)
    session.heard[2](TOO_MUCH)
    assert [one[0].done() for one in first] == [False, False, True, False]
    assert list(made._refused_together) == [("", "k")]
    session.heard[1](e.Done(1))
    second = burst(made, 2, exchange="other")
    session.heard[3](TOO_MUCH)
    session.heard[4](TOO_MUCH)
    assert [one[0].done() for one in second] == [False, False]


@pytest.mark.parametrize("behind", [e.Done(1), TOO_MUCH])
async def test_what_waits_counts_as_what_gathers(behind: e.CommandAnswer) -> None:
    session, made = batches()
    burst(made, 2)
    session.heard[0](TOO_MUCH)
    waiting = 2 * (MESSAGE_BYTES + len("0.0"))
    assert session.gathered_bytes == waiting
    made.publish("", "a", [message("x")], None)
    made.flush()
    assert session.gathered_bytes == waiting
    session.heard[1](behind)
    assert session.gathered_bytes == 0


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_was_sent_in_front_of_it_is_nothing_that_it_must_not_come_behind(in_order: bool) -> None:
    session, made = batches(in_order=in_order)
    confirmations = burst(made, 3)
    session.heard[1](UNSAYABLE)
    session.heard[0](e.Done(2))
    assert not any(each.done() for each in confirmations[1])
    session.heard[2](TOO_MUCH)
    assert bodies(session, 3) == [[b"1.0"], [b"1.1"], [b"2.0"], [b"2.1"]]
    session.heard[3](e.Done(1))
    assert errors(confirmations[1][:1]) == [None]


async def test_what_is_tried_apart_keeps_its_order_whichever_was_refused_first() -> None:
    session, made = batches()
    burst(made, 3)
    session.heard[1](UNSAYABLE)
    session.heard[0](TOO_MUCH)
    session.heard[2](TOO_MUCH)
    assert bodies(session, 3) == [[b"0.0"], [b"0.1"], [b"1.0"], [b"1.1"], [b"2.0"], [b"2.1"]]


async def test_what_was_refused_behind_an_early_refusal_of_all_that_followed_it_is_tried_apart() -> None:
    session, made = batches()
    first, second = burst(made, 2)
    [third] = burst(made, 1, callers=1)
    session.heard[2](UNSAYABLE)
    session.heard[0](TOO_MUCH)
    assert len(session.submitted) == 3 and not any(each.done() for each in first)
    session.heard[1](TOO_MUCH)
    assert bodies(session, 3) == [[b"0.0"], [b"0.1"], [b"1.0"], [b"1.1"]]
    assert not any(each.done() for each in second)
    assert [repr(each) for each in errors(third)] == [repr(UNSAYABLE)]


@pytest.mark.parametrize("in_front", [e.Done(1), TOO_MUCH])
async def test_callers_that_were_refused_early_and_last_are_tried_apart_behind_what_is_in_front_of_them(
    in_front: e.CommandAnswer,
) -> None:
    session, made = batches()
    burst(made, 1, callers=1)
    burst(made, 1)
    session.heard[1](UNSAYABLE)
    session.heard[0](in_front)
    assert bodies(session, 2) == [[b"0.0"], [b"0.1"]]


async def test_an_early_refusal_of_the_last_says_nothing_of_what_is_under_way_before_it() -> None:
    session, made = batches()
    first, _ = burst(made, 2)
    session.heard[0](TOO_MUCH)
    burst(made, 1, callers=1)
    session.heard[2](UNSAYABLE)
    assert len(session.submitted) == 3
    session.heard[1](e.Done(2))
    assert [type(each) for each in errors(first)] == [Rejected, Rejected]
    assert len(session.submitted) == 3
    assert not made._under_way and not made._refused_together


async def test_a_refused_operation_says_nothing_of_the_others_of_its_transaction() -> None:
    """Those before it may be there, in front of what is tried again."""
    session, made = batches()
    [callers] = burst(made, 1)
    made.publish("topics", "k", [message("later")], TX)
    made.flush()
    session.heard[0](TOO_MUCH)
    session.heard[1](TOO_MUCH)
    assert [type(each) for each in errors(callers)] == [Rejected, Rejected]
    assert len(session.submitted) == 2
