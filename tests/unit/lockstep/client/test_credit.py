"""Credit of a consumer: at most so many messages are in its hands, whatever becomes of what it accepts."""

import asyncio
from functools import partial

import pytest

from lockstep.client import Rejected, Session
from lockstep.client.consumer import Consumer
from lockstep.client.session_events import Received
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.server_messages import SessionEnded
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


async def opened(broker: FakeBroker, session: Session, credit: int) -> Consumer:
    consumer = await session.consume("a", credit=credit)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
    return consumer


def credit_of(session: Session) -> int:
    port, _ = next(iter(session._sets.values()))
    return port.core.line.held.consumers[1].credit


async def test_an_accept_that_is_refused_in_a_transaction_gives_no_credit(
    broker: FakeBroker, session: Session
) -> None:
    broker.refused_accepts["a"] = ErrorCode.ROLLBACK_ONLY
    consumer = await opened(broker, session, 1)
    for number in range(1, 6):
        await broker.deliver("one", 1, "a", number)
        transaction = session.transaction()
        await transaction.accept(await anext(consumer))
        await eventually(partial(getattr, transaction, "_failure"))
        with pytest.raises(Rejected):
            await transaction.commit()
        await asyncio.sleep(0.01)
    assert credit_of(session) <= 1
    await consumer.close()


async def test_what_is_accepted_while_a_new_primary_attaches_the_session_gives_credit_once(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await opened(broker, session, 4)
    await broker.deliver("one", 1, "a", 1, 2, 3, 4)
    messages = [await anext(consumer) for _ in range(4)]
    port = next(iter(session._sets.values()))[0]
    serves, write = asyncio.Event(), broker._write

    async def later(*arguments: object) -> None:
        await serves.wait()
        await write(*arguments)  # type: ignore[arg-type]

    broker.worlds["one"].fail_over(0)
    monkeypatch.setattr(broker, "_write", later)
    broker.hang_up()
    await eventually(lambda: port.core.state.value == "attaching" and not port.core.line.is_writing)
    answers = [message.accept() for message in messages]
    await asyncio.sleep(0.02)
    serves.set()
    await eventually(lambda: port.is_attached)
    await asyncio.gather(*answers, return_exceptions=True)
    assert credit_of(session) <= 4
    await consumer.close()


@pytest.mark.parametrize("how", ["ended", "no primary in time"])
async def test_what_is_accepted_as_the_session_is_lost_is_not_told_to_the_next_one(
    broker: FakeBroker, session: Session, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await opened(broker, session, 4)
    await broker.deliver("one", 1, "a", 1, 2, 3, 4)
    messages = [await anext(consumer) for _ in range(4)]
    port = next(iter(session._sets.values()))[0]
    line = port.core.line
    if how == "ended":
        answers = [message.accept() for message in messages]
        ended = SessionEnded(Epoch(1), LogIndex(1), ErrorCode.UNKNOWN_SESSION, "it was silent for too long")
        port._hear(Received(line.stream, (ended,)))
    else:
        monkeypatch.setattr(line, "connect", lambda *_: None)
        broker.hang_up()
        await eventually(lambda: not port.is_attached)
        answers = [message.accept() for message in messages]
        line.times.give_up_at = 0
        port._tick()
        monkeypatch.undo()
        line.times.round_at = 0
        port._tick()
    assert port.lost_sessions == 1
    refused = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(error) for error in refused] == [Rejected] * 4
    await session.publish("a", b"in the next session")
    assert not [
        command for command in broker.worlds["one"].executed() if isinstance(command, c.SettleCommand)
    ]
    assert credit_of(session) == 4
    await consumer.close()


async def test_a_message_of_a_lost_session_is_not_settled_in_the_next_one_for_a_consumer_that_has_stopped(
    broker: FakeBroker, session: Session
) -> None:
    world = broker.worlds["one"]
    consumer = await opened(broker, session, 4)
    await broker.deliver("one", 1, "a", 1)
    message = await anext(consumer)
    await consumer.close()
    await session.publish("a", b"of the same session")
    port = next(iter(session._sets.values()))[0]
    world.ended.add(port.core.session)
    broker.hang_up()
    await eventually(lambda: port.lost_sessions == 1 and port.is_attached)
    with pytest.raises(Rejected) as refused:
        await message.release()
    assert refused.value.code is ErrorCode.STALE_DELIVERY
    with pytest.raises(Rejected):
        async with session.transaction() as transaction:
            await transaction.accept(message)
    assert not [command for command in world.executed() if isinstance(command, c.SettleCommand)]


async def test_who_looks_for_messages_in_vain_leaves_nothing_behind(
    broker: FakeBroker, session: Session
) -> None:
    async with await opened(broker, session, 4) as consumer:
        for _ in range(3):
            assert await consumer.next(0) is None
        assert not consumer._waiting
