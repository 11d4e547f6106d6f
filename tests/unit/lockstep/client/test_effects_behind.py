"""What its application does while effects of a session wait for their turn."""

import asyncio

from lockstep.client import Session
from lockstep.client.session_events import DeliveriesVoided, Received
from lockstep.client.set_session import EFFECTS_AT_ONCE, SetSession
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from lockstep.core.server_messages import DeliveredMessage, Deliveries
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually

MANY = 3 * EFFECTS_AT_ONCE


def come(port: SetSession, count: int) -> None:
    """One message of the stream with so many deliveries, as a primary writes to a session of many consumers."""
    line = port.core.line
    numbers = sorted(line.held.consumers)
    messages = tuple(
        Deliveries(
            line.epoch,
            LogIndex(1),
            numbers[n % len(numbers)],
            "a",
            (DeliveredMessage(QueuePosition(1000 + n), b"", b"", 0, 0, True),),
        )
        for n in range(count)
    )
    port._hear(Received(line.stream, messages))


async def test_what_has_come_for_a_consumer_that_stops_before_it_is_told_goes_back(
    broker: FakeBroker, session: Session
) -> None:
    """Nobody else would get it as long as the session lives: a proxy has one for all of its clients."""
    stays, stops = await session.consume("a", credit=MANY), await session.consume("a", credit=MANY)
    port = next(iter(session._sets.values()))[0]
    await eventually(lambda: port.is_attached and not port.core.line.requests)
    come(port, MANY)
    await stops.close()
    while port._is_behind:
        await asyncio.sleep(0)
    assert len(stays._arrived) == MANY // 2
    held = port.core.line.held._held["a"]
    mine = {message.position for message in stays._arrived}
    assert set(held) - mine == set(), "in the session's hands, and in nobody's"


async def test_what_is_accepted_before_it_is_told_void_gives_credit_once(
    broker: FakeBroker, session: Session
) -> None:
    consumer = await session.consume("a", credit=4)
    port = next(iter(session._sets.values()))[0]
    await eventually(lambda: port.is_attached and not port.core.line.requests)
    come(port, 4)
    messages = [await anext(consumer) for _ in range(4)]
    core = port.core
    # Thousands of others are told first that what they had is void.
    effects = core.line.held.void(Epoch(2))
    others = [DeliveriesVoided(99, "b", Epoch(1), ()) for _ in range(MANY)]
    port._perform_all([*others, *effects])
    for message in messages:
        message.accept()
    while port._is_behind:
        await asyncio.sleep(0)
    assert core.line.held.consumers[1].credit <= 4
