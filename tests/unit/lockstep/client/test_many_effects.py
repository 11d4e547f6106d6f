"""What becomes of the deliveries of thousands of consumers when their primary ends: told in turns, in order, and to the end."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from lockstep.client import session_events as e
from lockstep.client.session import Session
from lockstep.client.set_session import EFFECTS_AT_ONCE, POSITIONS_PER_EFFECT, SetSession
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SetName
from lockstep.core.pieces import PIECE_COST
from lockstep.core.server_messages import DeliveredMessage

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


async def test_nothing_of_a_lost_session_is_told_later(one: tuple[SetSession, Port]) -> None:
    """In between somebody could settle what came with it in the name of the next session, which may hold the same message."""
    session, port = one
    lost = session.lost_sessions
    session._perform_all([*(voided(number) for number in range(MANY)), e.SessionLost(ErrorCode.EXPIRED, "")])
    assert len(port.heard) == MANY and session.lost_sessions == lost + 1


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

    def __init__(self, steps: int, cost: int = PIECE_COST) -> None:
        super().__init__()
        self.left = steps
        self.cost = cost
        self.fails = False

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int]:
        self.heard.append("begun")
        while self.left:
            self.left -= 1
            yield self.cost
        if self.fails:
            raise ZeroDivisionError
        self.heard.append("done")


DELIVERED = e.Delivered(1, "q", Epoch(2), (DeliveredMessage(QueuePosition(1), b"", b"", 0, 0, True),))


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


async def test_all_is_done_at_once_where_a_session_is_lost(one: tuple[SetSession, Port]) -> None:
    session, _ = one
    slow = session._consumers[1] = Slow(5)
    session._perform_all([voided(1)])
    assert slow.heard == ["begun"]
    session._perform_all([voided(2), e.SessionLost(ErrorCode.EXPIRED, "")])
    assert slow.heard == ["begun", "done", "begun", "done"]
    slow.left = 5
    session._perform_all([voided(1), e.SessionLost(ErrorCode.EXPIRED, "")])
    assert slow.heard == ["begun", "done"] * 3


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
