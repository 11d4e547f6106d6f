"""What becomes of the deliveries of thousands of consumers when their primary ends: told in turns, in order, and to the end."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from lockstep.client import session_events as e
from lockstep.client.session import Session
from lockstep.client.set_session import (
    EFFECTS_AT_ONCE,
    POSITIONS_AT_ONCE,
    POSITIONS_PER_EFFECT,
    SetSession,
)
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName
from lockstep.core.pieces import PIECE_COST
from lockstep.core.server_messages import DeliveredMessage, Deliveries, SessionEnded
from tests.counted_work import CountedOpcodes
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually

MANY = 5 * EFFECTS_AT_ONCE


class Port:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        self.heard.append((epoch, len(messages)))

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int] | None:
        self.heard.append(positions)
        return None

    def drained(self) -> None:
        self.heard.append("drained")

    def stop(self, code: ErrorCode, message: str) -> None:
        self.heard.append(code)


@pytest.fixture
async def one(session: Session) -> tuple[SetSession, Port]:
    opened, _ = await session.of_set(SetName("one"))
    port = Port()
    opened._consumers[1] = port
    return opened, port


def content(position: int) -> DeliveredMessage:
    return DeliveredMessage(QueuePosition(position), b"", b"", 0, 0, True)


def voided(number: int, count: int = 1) -> e.DeliveriesVoided:
    positions = tuple(QueuePosition(number * 1000 + place) for place in range(count))
    return e.DeliveriesVoided(1, "q", Epoch(1), positions)


async def test_many_effects_are_performed_in_turns_and_in_order(one: tuple[SetSession, Port]) -> None:
    session, port = one
    effects = [voided(number) for number in range(MANY)]
    session._perform_all(effects)
    session._perform_all([e.ConsumerDrained(1)])
    told = [len(port.heard)]
    while len(port.heard) <= MANY:
        await asyncio.sleep(0)
        told.append(len(port.heard))
    assert max(after - before for before, after in pairwise(told)) <= EFFECTS_AT_ONCE
    assert port.heard == [*(effect.positions for effect in effects), "drained"]


async def test_many_positions_count_as_more_than_one_effect(one: tuple[SetSession, Port]) -> None:
    session, port = one
    session._perform_all([voided(number, 5 * POSITIONS_PER_EFFECT) for number in range(MANY)])
    told = []
    while len(port.heard) < MANY:
        before = len(port.heard)
        await asyncio.sleep(0)
        told.append(len(port.heard) - before)
    assert max(told) <= EFFECTS_AT_ONCE // 5


async def test_consumers_are_told_in_turns_that_a_session_is_lost_and_callers_at_once(
    one: tuple[SetSession, Port],
) -> None:
    """What consumers have is known to be void meanwhile, and what the next session delivers is told behind all of it."""
    session, port = one
    lost, aborted = session.lost_sessions, asyncio.Event()
    key = LogIndex(1), Epoch(1)
    session.transactions[key] = aborted.set
    waiting = session.loop.create_future()
    waiting.add_done_callback(asyncio.Future.exception)

    def hear(_: object) -> None:
        session._perform_all([e.ConsumerDrained(1)])

    voids = [voided(number) for number in range(MANY)]
    session._perform_all(voids[: MANY // 2] * 2)
    session._perform_all(
        [
            e.TransactionAborted(key),
            *voids,
            e.CommandRejected(waiting, ErrorCode.EXPIRED, ""),
            e.CommandRejected(hear, ErrorCode.EXPIRED, ""),
            e.SessionLost(ErrorCode.EXPIRED, ""),
        ]
    )
    assert aborted.is_set() and waiting.done() and isinstance(waiting.exception(), Rejected)
    session._perform_all([DELIVERED])
    told = [len(port.heard)]
    assert told == [0]
    while session._is_behind:
        assert session.is_telling_loss and (session.lost_sessions, session.losses_told) == (lost + 1, lost)
        await asyncio.sleep(0)
        told.append(len(port.heard))
    assert max(after - before for before, after in pairwise(told)) <= EFFECTS_AT_ONCE
    assert len(port.heard) == 2 * MANY + 2
    assert port.heard[-2:] == ["drained", (Epoch(2), 1)], "what comes of it is behind the others, too"
    assert not session.is_telling_loss and session.losses_told == lost + 1


async def test_what_a_lost_session_has_delivered_is_its_own_though_it_is_told_later(session: Session) -> None:
    """The next one may hold the same message, of the same epoch, for somebody else."""
    consumer = await session.consume("a", credit=10)
    opened, _ = await session.of_set(SetName("one"))
    number = consumer._number
    delivered = e.Delivered(number, "q", Epoch(1), (content(1), content(2)))
    gone = e.DeliveriesVoided(number, "q", Epoch(1), (QueuePosition(1), QueuePosition(2)))
    others = [voided(number) for number in range(100, 100 + MANY)]
    opened._perform_all([*others, delivered])
    opened._perform_all([*others, gone, e.SessionLost(ErrorCode.EXPIRED, "")])
    while (message := consumer.take()) is None:
        await asyncio.sleep(0)
    assert opened.is_telling_loss and not message.is_known_void
    assert message.is_void
    with pytest.raises(Rejected, match="void"):
        await message.accept()
    second = consumer.take()
    assert second is not None and second.lost_sessions == opened.lost_sessions - 1
    async with session.transaction() as transaction:
        with pytest.raises(Rejected, match="void"):
            await transaction.accept(second)
        await transaction.rollback()
    while opened._is_behind:
        await asyncio.sleep(0)
    assert not consumer._unsettled


async def test_what_came_for_a_consumer_that_has_stopped_is_not_given_back_in_the_next_ones_name(
    session: Session,
) -> None:
    consumer = await session.consume("a", credit=10)
    opened, _ = await session.of_set(SetName("one"))
    number = consumer._number
    del opened._consumers[number]
    opened._perform_all([voided(number) for number in range(100, 100 + MANY)])
    opened._perform_all([e.Delivered(number, "q", Epoch(1), (content(1),))])
    opened._perform_all([e.SessionLost(ErrorCode.EXPIRED, "")])
    # The next one has it, and its consumer's end waits.
    held = opened.core.line.held
    held.epoch, held._held["q"] = Epoch(1), {QueuePosition(1): number}
    last = opened.core.window.last
    while opened._is_behind:
        await asyncio.sleep(0)
    assert opened.core.window.last == last


class Between(Port):
    """Looks whether a loss is being told when it hears what is void."""

    def __init__(self, session: SetSession) -> None:
        super().__init__()
        self._session = session

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        self.heard.append(self._session.is_telling_loss)


async def test_what_consumers_are_told_keeps_its_order_where_a_session_is_lost(
    one: tuple[SetSession, Port],
) -> None:
    session, port = one
    stopped, between = Port(), Between(session)
    session._consumers.update({2: stopped, 3: between})
    came, lost = e.Delivered(2, "q", Epoch(1), (content(9),)), session.lost_sessions
    session._perform_all([voided(number) for number in range(MANY)])
    session._perform_all(
        [
            came,
            e.ConsumerStopped(2, ErrorCode.NOT_FOUND, ""),
            e.ConsumerDrained(1),
            e.Delivered(1, "q", Epoch(1), (content(7), content(8))),
            e.AllVoided({Epoch(1): {"q": {QueuePosition(7): 1, QueuePosition(8): 1, QueuePosition(9): 3}}}),
            e.SessionLost(ErrorCode.EXPIRED, ""),
        ]
    )
    session._perform_all([DELIVERED])
    assert port.heard == stopped.heard == []
    while session._is_behind:
        assert session.lost_sessions == lost + 1
        await asyncio.sleep(0)
    assert port.heard[MANY:] == ["drained", (Epoch(1), 2), (7, 8), (Epoch(2), 1)]
    assert stopped.heard == [(Epoch(1), 1), ErrorCode.NOT_FOUND]
    assert between.heard == [True], "it was still to be told of the loss"
    assert (session.lost_sessions, session.losses_told) == (lost + 1, lost + 1)


async def test_queues_and_consumers_hear_in_order_what_was_void_together(session: Session) -> None:
    opened, _ = await session.of_set(SetName("one"))
    port = Port()
    opened._consumers.update({1: port, 2: port})
    held = {"r": {QueuePosition(3): 1}, "q": {QueuePosition(5): 2, QueuePosition(7): 1}}
    opened._perform_all([e.AllVoided({Epoch(1): held})])
    assert port.heard == [(7,), (5,), (3,)]


async def test_little_is_told_at_once_behind_much(one: tuple[SetSession, Port]) -> None:
    session, port = one
    session._perform_all([voided(1, POSITIONS_AT_ONCE + 1), voided(2, POSITIONS_AT_ONCE)])
    assert len(port.heard) == 1
    while len(port.heard) < 2:
        await asyncio.sleep(0)
    session._perform_all([voided(3), voided(4)])
    assert len(port.heard) == 4


async def test_consumers_that_have_much_are_told_in_turns_though_they_are_few(
    one: tuple[SetSession, Port],
) -> None:
    session, port = one
    few = [voided(number, POSITIONS_AT_ONCE // 2) for number in range(10)]
    session._perform_all(few)
    told = [len(port.heard)]
    while len(port.heard) < len(few):
        await asyncio.sleep(0)
        told.append(len(port.heard))
    assert max(after - before for before, after in pairwise([0, *told])) <= 3


async def test_a_consumer_notes_in_pieces_what_is_void(session: Session) -> None:
    consumer = await session.consume("a", credit=10)
    count = 10_000
    consumer.deliver("q", Epoch(1), tuple(content(position) for position in range(count)))
    left = [len(consumer._unsettled)]
    for _ in consumer.void(Epoch(1), tuple(map(QueuePosition, range(count)))):
        left.append(len(consumer._unsettled))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 2_000
    assert consumer.take() is None


async def test_a_consumer_knows_what_is_void_and_what_is_settled(
    broker: FakeBroker, session: Session
) -> None:
    consumer = await session.consume("a", credit=10)
    consumer.deliver("a", Epoch(1), (content(1), content(2)))
    settled, taken = await anext(consumer), await anext(consumer)
    settled.accept()
    assert (settled.is_void, taken.is_void) == (False, False)
    for _ in consumer.void(Epoch(1), (QueuePosition(2),)):
        pass
    assert (settled.is_void, taken.is_void) == (False, True)
    for message, why in (taken, "void"), (settled, "settled already"):
        with pytest.raises(Rejected, match=why):
            await message.release()


async def test_few_effects_are_performed_at_once(one: tuple[SetSession, Port]) -> None:
    session, port = one
    session._perform_all([voided(1), e.ConsumerDrained(1)])
    assert len(port.heard) == 2


async def test_one_that_raises_takes_no_other_along(
    one: tuple[SetSession, Port], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, port = one
    monkeypatch.setattr(port, "drained", lambda: 1 / 0)
    session._perform_all([e.ConsumerDrained(1), *(voided(number) for number in range(MANY))])
    while len(port.heard) < MANY:
        await asyncio.sleep(0)
    assert "was not performed" in caplog.text


async def test_whoever_closes_the_session_leaves_nothing_untold(one: tuple[SetSession, Port]) -> None:
    session, port = one
    session._perform_all([voided(number) for number in range(MANY)])
    await session.close()
    assert len(port.heard) >= MANY


class Slow(Port):
    """It has much to do for what is void."""

    def __init__(self, steps: int, cost: int = PIECE_COST, again: int = 0) -> None:
        """`again`: so many steps more each further time."""
        super().__init__()
        self.left = steps
        self.again = again
        self.cost = cost
        self.fails = False

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int]:
        self.heard.append("begun")
        while self.left:
            self.left -= 1
            yield self.cost
        if self.fails:
            raise ZeroDivisionError
        self.left = self.again
        self.heard.append("done")


DELIVERED = e.Delivered(1, "q", Epoch(2), (content(1),))


async def test_what_one_has_to_do_for_what_is_void_is_done_in_turns_before_it_is_told_more(
    one: tuple[SetSession, Port],
) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5)
    session.core.line.held.kept_from = Epoch(2)
    session._perform_all([voided(1), DELIVERED])
    left = [slow.left]
    session._perform_all([e.ConsumerDrained(1)])
    while "drained" not in slow.heard:
        assert session.is_over(Epoch(1)) and not session.is_over(Epoch(2)), "nobody may accept it meanwhile"
        await asyncio.sleep(0)
        left.append(slow.left)
    assert left == [4, 3, 2, 1, 0, 0]
    assert slow.heard == ["begun", "done", (Epoch(2), 1), "drained"]
    assert not session.is_over(Epoch(1))


async def test_little_is_done_at_once_for_what_is_void(one: tuple[SetSession, Port]) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5, cost=0)
    session._perform_all([voided(1), DELIVERED])
    assert slow.heard == ["begun", "done", (Epoch(2), 1)]


async def test_what_one_has_to_do_for_a_lost_session_is_done_in_turns_too(
    one: tuple[SetSession, Port],
) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5)
    session._perform_all([voided(1), e.SessionLost(ErrorCode.EXPIRED, ""), DELIVERED])
    assert slow.heard == ["begun"] and slow.left == 4
    while session._is_behind:
        assert session.is_telling_loss
        await asyncio.sleep(0)
    assert slow.heard == ["begun", "done", (Epoch(2), 1)] and not session.is_telling_loss


async def test_what_callers_say_while_consumers_are_told_is_for_the_next_session(
    broker: FakeBroker, session: Session
) -> None:
    """In the order in which they say it, as ever."""
    opened, batches = await session.of_target("", "a")
    slow = Slow(5)
    number = opened.consume(slow, "a", 10, is_exclusive=False)
    await eventually(lambda: opened.is_attached and not opened.core.line.requests)
    head, lost = (opened.core.epoch, LogIndex(1)), opened.core.session_id
    opened._hear(e.Received(opened.core.line.stream, (Deliveries(*head, number, "a", (content(1),)),)))
    opened._hear(
        e.Received(opened.core.line.stream, (SessionEnded(*head, ErrorCode.UNKNOWN_SESSION, "it is over"),))
    )
    assert opened.is_telling_loss and opened.core.session_id != lost
    published = batches.publish("", "a", [OutgoingMessage(b"", b"body")], None)
    assert opened.core.window.last == 0
    opened.drain(number)
    assert opened.core.window.last == 1, "nobody looks at the queue before"
    await published
    assert slow.heard[-1] == "done" and not opened.is_telling_loss


async def test_a_session_may_be_lost_while_the_loss_of_another_is_told(one: tuple[SetSession, Port]) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5)
    lost = session.lost_sessions
    session._perform_all([voided(1), e.SessionLost(ErrorCode.EXPIRED, ""), DELIVERED])
    session._perform_all([voided(2), e.SessionLost(ErrorCode.EXPIRED, "")])
    assert (session.lost_sessions, session.losses_told) == (lost + 2, lost)
    while session._is_behind:
        await asyncio.sleep(0)
        if "done" not in slow.heard:
            assert session.losses_told == lost
    assert session.losses_told == lost + 2


async def test_a_loss_is_told_to_its_end_before_the_next_one_is(one: tuple[SetSession, Port]) -> None:
    """What the session between them has delivered is void, too, as soon as that is lost."""
    session, _ = one
    slow = session._consumers[1] = Slow(5, again=5)
    lost = session.lost_sessions
    for number in 1, 2:
        session._perform_all([voided(number), e.SessionLost(ErrorCode.EXPIRED, ""), DELIVERED])
    told = []
    while session._is_behind:
        assert session.is_telling_loss and session.lost_sessions == lost + 2
        told.append(session.losses_told - lost)
        await asyncio.sleep(0)
    assert sorted(told) == told and set(told) == {0, 1}
    assert slow.heard == ["begun", "done", (Epoch(2), 1)] * 2
    assert session.losses_told == lost + 2


async def test_whoever_closes_the_session_hears_all_in_order_however_long_it_takes(
    one: tuple[SetSession, Port],
) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(1_000, again=1_000)
    session._perform_all([voided(1), e.ConsumerDrained(1), voided(2)])
    await session.close(timeout_seconds=0)
    assert slow.heard[:5] == ["begun", "done", "drained", "begun", "done"]


async def test_one_that_raises_later_takes_no_other_along(
    one: tuple[SetSession, Port], caplog: pytest.LogCaptureFixture
) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5)
    slow.fails = True
    session._perform_all([voided(1), DELIVERED])
    while session._is_behind:
        await asyncio.sleep(0)
    assert slow.heard == ["begun", (Epoch(2), 1)]
    assert "was not told to its end" in caplog.text


async def test_what_is_void_of_a_consumer_that_has_stopped_is_told_in_turns_too(session: Session) -> None:
    opened, _ = await session.of_set(SetName("one"))
    slow = Slow(5)
    opened._voided = lambda _queue, epoch, positions: slow.void(epoch, positions)
    opened._perform_all([voided(1)])
    assert slow.left == 4
    while opened._is_behind:
        await asyncio.sleep(0)
    assert slow.heard == ["begun", "done"]


async def test_who_had_what_is_found_out_in_turns_where_it_is_much(session: Session) -> None:
    """And at once where it is little; what comes behind is told behind it."""
    opened, _ = await session.of_set(SetName("one"))
    ports = {number: Port() for number in range(1, 21)}
    opened._consumers.update(ports)

    async def lose(count: int) -> list[int]:
        """Opcodes of each step."""
        held = opened.core.line.held
        held._held["q"] = {QueuePosition(position): position % len(ports) + 1 for position in range(count)}
        with CountedOpcodes() as counted:
            opened._perform_all([*held.void(Epoch(1)), e.ConsumerDrained(1)])
        opcodes = [counted.total]
        while opened._is_behind:
            with CountedOpcodes() as counted:
                await asyncio.sleep(0)
            opcodes.append(counted.total)
        return opcodes

    assert len(await lose(len(ports))) == 1
    few, many = await lose(10_000), await lose(100_000)
    assert max(many) < 2 * max(few)
    for number, port in ports.items():
        positions = [heard for heard in port.heard if isinstance(heard, tuple)]
        assert [len(some) for some in positions] == [1, 500, 5_000]
        assert [some[0] for some in positions] == [number - 1] * 3
    assert [place for place, heard in enumerate(ports[1].heard) if heard == "drained"] == [1, 3, 5]
