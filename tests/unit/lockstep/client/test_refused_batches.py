"""A batch of several callers that was refused: who hears it, who is tried again, and behind what."""

import pytest

from lockstep.client import session_events as e
from lockstep.client.command_batches import RefusedTogether
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.lockstep.client.test_command_batches import TX, batches, message, told

FULL = Rejected(ErrorCode.QUEUE_FULL, "full")


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
