"""Rejects of callers who share a session are said one command at a time, and the rest of one behind what others have said."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import session_events as e
from lockstep.client.command_batches import BATCH_MESSAGES_MAX, CommandBatches, Confirmation
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, QueuePosition

STALE = Rejected(ErrorCode.STALE_DELIVERY, "stale", queue="q")


class Session:
    """What it is told is answered when a test says so."""

    before_write: Callable[[], None]
    rejects_over: Callable[[str | None], asyncio.Future[None] | None]
    gathered_bytes = 0
    lost_sessions = 0
    losses_told = 0
    _is_turn_due = False

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.submitted: list[c.AnyCommand] = []
        self.heard: list[Callable[[e.CommandAnswer], None]] = []
        self.batches = CommandBatches(self, in_order=False)  # type: ignore[arg-type]

    def write_soon(self) -> None:
        self._is_turn_due = True

    def _turn(self) -> None:
        is_due, self._is_turn_due = self._is_turn_due, False
        if is_due:
            self.batches.flush()

    def submit_for(self, command: c.AnyCommand, heard: Callable[[e.CommandAnswer], None]) -> None:
        self.submitted.append(command)
        self.heard.append(heard)

    def reject(self, queue: str, *positions: int) -> Confirmation:
        named = tuple(map(QueuePosition, positions))
        confirmation = self.batches.settle(queue, Epoch(1), named, c.Disposition.REJECT, None)
        self._turn()
        return confirmation

    def answer(self, answer: e.CommandAnswer | int) -> None:
        """The command that was said first of those without an answer."""
        self.heard.pop(0)(e.Done(answer) if isinstance(answer, int) else answer)
        self._turn()

    def take(self) -> list[tuple[str, ...]]:
        """What was submitted since."""
        taken, self.submitted = self.submitted, []
        said = []
        for command in taken:
            if isinstance(command, c.SettleCommand):
                assert command.may_be_partial is (command.disposition == c.Disposition.REJECT)
                said.append((command.queue, *map(str, command.positions)))
            else:
                said.append((type(command).__name__,))
        return said


@pytest.fixture
async def session() -> Session:
    return Session()


async def test_one_command_is_under_way_and_others_gather_behind_it(session: Session) -> None:
    first = session.reject("q", 1, 2)
    others = [session.reject("q", 3), session.reject("q", 4)]
    assert session.take() == [("q", "1", "2")]
    session.answer(2)
    assert first.result() == 2 and session.take() == [("q", "3", "4")]
    session.answer(2)
    assert [other.result() for other in others] == [1, 1] and session.take() == []


async def test_what_is_left_of_a_reject_waits_behind_what_others_say(session: Session) -> None:
    slow = session.reject("slow", 1, 2, 3)
    session.batches.publish("", "a", [c.OutgoingMessage(b"", b"1")], None)
    session.batches.settle("slow", Epoch(1), (QueuePosition(8),), c.Disposition.ACCEPT, None)
    session.batches.flush()
    other = session.reject("other", 9)
    assert session.take() == [("slow", "1", "2", "3"), ("PublishCommand",), ("slow", "8"), ("other", "9")]
    session.answer(1)
    assert not slow.done() and session.take() == [("slow", "2", "3")]
    for _ in ("publish", "accept", "other"):
        session.answer(1)
    assert other.result() == 1 and session.take() == []
    later = session.reject("slow", 4)
    session.answer(1)
    assert session.take() == [("slow", "3", "4")]
    session.answer(1)
    assert slow.result() == 3 and not later.done() and session.take() == [("slow", "4")]
    session.answer(1)
    assert later.result() == 1


async def test_of_queues_that_take_long_one_has_its_turn_at_a_time_and_others_wait_for_none(
    session: Session,
) -> None:
    slow = {name: session.reject(name, 1, 2, 3) for name in ("a", "b", "c")}
    session.take()
    for _ in slow:
        session.answer(1)
    assert session.take() == [("a", "2", "3")]
    quick = session.reject("quick", 9)
    session.answer(1)
    assert session.take() == [("quick", "9"), ("b", "2", "3")]
    session.answer(1)
    assert quick.result() == 1
    turns = []
    while not all(confirmation.done() for confirmation in slow.values()):
        session.answer(1)
        turns += session.take()
    assert turns == [("c", "2", "3"), ("a", "3"), ("b", "3"), ("c", "3")]
    session.reject("a", 4)
    session.reject("b", 4)
    assert session.take() == [("a", "4"), ("b", "4")], "they are as others again"


async def test_what_its_session_held_is_not_rejected_in_the_name_of_the_next(session: Session) -> None:
    begun, waiting = session.reject("q", 1, 2), session.reject("q", 3)
    session.answer(1)
    assert session.take() == [("q", "1", "2"), ("q", "2", "3")]
    behind = session.reject("q", 5)
    session.lost_sessions += 1
    session.losses_told += 1
    session.answer(InDoubt(ErrorCode.UNKNOWN_SESSION, "lost"))
    for confirmation in (begun, waiting):
        assert isinstance(confirmation.exception(), InDoubt)
    assert isinstance(behind.exception(), Rejected) and session.take() == []
    kept = session.reject("q", 1)
    assert session.take() == [("q", "1")]
    session.answer(1)
    assert kept.result() == 1


async def test_what_a_lost_session_had_is_not_rejected_in_the_next_ones_name_by_whoever_has_not_heard_of_that(
    session: Session,
) -> None:
    session.lost_sessions += 1
    rejected = session.reject("q", 1)
    assert isinstance(rejected.exception(), Rejected) and session.take() == []
    session.losses_told += 1
    session.reject("q", 1)
    assert session.take() == [("q", "1")]


async def test_a_queue_that_takes_long_has_no_turn_any_more_when_its_session_is_lost(
    session: Session,
) -> None:
    for name in ("a", "b"):
        session.reject(name, 1, 2)
    for _ in "ab":
        session.answer(1)
    session.lost_sessions += 1
    session.losses_told += 1
    session.answer(InDoubt(ErrorCode.UNKNOWN_SESSION, "lost"))
    session.take()
    slow = session.reject("c", 1, 2)
    session.answer(1)
    session.reject("b", 3)
    assert session.take() == [("c", "1", "2"), ("c", "2"), ("b", "3")]
    session.answer(1)
    assert slow.result() == 2


async def test_a_refusal_of_several_is_the_refusal_of_those_alone_that_it_is_due_to(session: Session) -> None:
    under_way = session.reject("q", 1)
    stale, good, partial = session.reject("q", 2), session.reject("q", 3), session.reject("q", 4, 5)
    session.answer(1)
    later = session.reject("q", 6)
    session.answer(STALE)
    session.answer(STALE)
    session.answer(1)
    session.answer(1)
    session.answer(STALE)
    session.answer(1)
    assert session.take() == [
        ("q", "1"),
        ("q", "2", "3", "4", "5"),
        ("q", "2"),
        ("q", "3"),
        ("q", "4", "5"),
        ("q", "5"),
        ("q", "6"),
    ]
    assert isinstance(stale.exception(), Rejected)
    assert under_way.result() == good.result() == later.result() == 1
    assert isinstance(partial.exception(), InDoubt), "a part of it is done"


async def test_what_nobody_waits_for_any_more_is_rejected_all_the_same(session: Session) -> None:
    gone, other = session.reject("q", 1), session.reject("q", 2)
    gone.cancel()
    session.answer(1)
    assert session.take() == [("q", "1"), ("q", "2")]
    session.answer(1)
    assert other.result() == 1


async def test_what_was_rejected_of_a_queue_is_over_when_all_of_it_is_done_and_not_what_was_rejected_since(
    session: Session,
) -> None:
    assert session.rejects_over("q") is None and session.rejects_over(None) is None
    session.reject("q", 1, 2)
    session.reject("q", 3).cancel()
    of_queue = session.rejects_over("q")
    session.reject("p", 1)
    of_all = session.rejects_over(None)
    assert of_queue is not None and of_all is not None
    session.answer(1)
    session.reject("q", 4)
    assert session.take() == [("q", "1", "2"), ("p", "1"), ("q", "2", "3")]
    session.answer(1)
    assert session.rejects_over("p") is None and not of_all.done()
    session.answer(1)
    assert not of_queue.done(), "nobody waits for what is left, and it is rejected all the same"
    session.answer(1)
    assert of_queue.done() and of_all.done() and session.rejects_over("q") is not None
    assert session.take() == [("q", "3", "4"), ("q", "4")]
    session.answer(1)
    assert session.rejects_over("q") is None


async def test_what_was_rejected_is_over_when_it_is_refused_and_of_each_epoch_by_itself(
    session: Session,
) -> None:
    """A primary that was handed the set has what was delivered before."""
    session.reject("q", 1)
    session.batches.settle("q", Epoch(2), (QueuePosition(2),), c.Disposition.REJECT, None)
    session._turn()
    over = session.rejects_over("q")
    assert over is not None
    session.answer(STALE)
    assert not over.done()
    session.answer(1)
    assert over.done() and session.rejects_over("q") is None


async def test_what_was_rejected_is_over_when_its_session_is_lost(session: Session) -> None:
    for position in (1, 2):
        session.reject("q", position)
    over = session.rejects_over("q")
    session.lost_sessions += 1
    session.losses_told += 1
    session.answer(InDoubt(ErrorCode.UNKNOWN_SESSION, "lost"))
    assert over is not None and over.done()


async def test_several_together_are_not_more_than_a_batch(session: Session) -> None:
    session.reject("q", 0)
    for number in range(1, 4):
        session.reject("q", *range(number * BATCH_MESSAGES_MAX, (number + 1) * BATCH_MESSAGES_MAX - 1))
    session.answer(1)
    assert [len(said) for said in session.take()] == [2, BATCH_MESSAGES_MAX]


async def test_a_caller_who_is_alone_keeps_the_order_of_all_that_he_says(session: Session) -> None:
    session.batches = CommandBatches(session, in_order=True)  # type: ignore[arg-type]
    for queue in ("q", "p"):
        session.batches.settle(queue, Epoch(1), (QueuePosition(1),), c.Disposition.REJECT, None)
    session.batches.publish("", "a", [c.OutgoingMessage(b"", b"1")], None)
    session.batches.flush()
    kinds = [type(command) for command in session.submitted]
    assert kinds == [c.SettleCommand, c.SettleCommand, c.PublishCommand]
