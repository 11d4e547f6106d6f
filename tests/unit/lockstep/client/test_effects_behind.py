"""What its application does while effects of a session wait for their turn."""

import asyncio

import pytest

from lockstep.client import Client, Session
from lockstep.client.session_events import DeliveriesVoided, Received
from lockstep.client.set_session import EFFECTS_AT_ONCE, SetSession
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from lockstep.core.server_messages import Answers, CommandAnswered, DeliveredMessage, Deliveries
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


@pytest.mark.parametrize("credit", [1, 4])
async def test_what_a_transaction_could_not_accept_takes_no_credit_though_it_is_void_and_others_are_told_first(
    broker: FakeBroker, session: Session, credit: int
) -> None:
    """A consumer of one message at a time would never get another one."""
    consumer = await session.consume("a", credit=credit)
    port = next(iter(session._sets.values()))[0]
    await eventually(lambda: port.is_attached and not port.core.line.requests)
    come(port, credit)
    transaction = session.transaction()
    await transaction.publish("b", b"made of it")
    broker.is_holding = True
    message = await anext(consumer)
    await transaction.accept(message)
    core = port.core
    await eventually(lambda: core.window.sent == 3 and not core.line.is_writing)
    others = [DeliveriesVoided(99, "b", Epoch(1), ()) for _ in range(MANY)]
    port._perform_all([*others, *core.line.held.void(Epoch(2))])
    refused = CommandAnswered(3, ErrorCode.ROLLED_BACK, "its epoch is over", 0)
    port._hear(Received(core.line.stream, (Answers(core.epoch, LogIndex(1), (refused,)),)))
    port._perform_all(others)
    while port._is_behind:
        await asyncio.sleep(0)
    assert message.is_void
    assert core.line.held.consumers[1].credit + consumer._to_grant == credit
    broker.is_holding = False
    await broker.commit()


async def test_what_waits_to_be_rejected_when_it_becomes_void_gives_credit_once(
    broker: FakeBroker, client: Client
) -> None:
    """Its consumer gave credit for it when it was rejected."""
    async with client.session(in_order=False) as session:
        consumer = await session.consume("a", credit=4)
        port = next(iter(session._sets.values()))[0]
        await eventually(lambda: port.is_attached and not port.core.line.requests)
        broker.is_holding = True
        come(port, 4)
        for _ in range(3):
            (await anext(consumer)).reject()
            await asyncio.sleep(0)
        core = port.core
        assert len(core.line.held.by_queue()["a"]) == 3, "one is under way, and others wait for their turn"
        port._perform_all(core.line.held.void(Epoch(2)))
        assert core.line.held.consumers[1].credit + consumer._to_grant == 4
        broker.is_holding = False
        await broker.commit()
