"""What has no form on the wire is refused to whoever asked for it, and harms nobody else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstep.client import Rejected, Session, session_stream
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies

Asking = Callable[[Any], Awaitable[object]]


async def in_transaction(session: Session, **options: Any) -> None:
    async with session.transaction(**options) as transaction:
        await transaction.publish("a", b"x")


async def consumed(session: Session, credit: int) -> object:
    async with await session.consume("a", credit=credit) as consumer:
        return await anext(consumer)


UNSAYABLE: dict[str, Asking] = {
    "text": lambda session: session.publish("a", "text"),
    "text among bodies": lambda session: session.publish("a", [b"x", "text"]),
    "text as properties": lambda session: session.publish("a", b"x", properties="text"),
    "a negative time to live": lambda session: session.publish("a", b"x", ttl_ms=-1),
    "half a millisecond": lambda session: session.publish("a", b"x", ttl_ms=0.5),
    "a header that is a number": lambda session: session.publish(
        "", b"x", exchange="x", headers=(("name", 1),)
    ),
    "no routing key": lambda session: session.publish(None, b"x", exchange="x"),
    "a surrogate": lambda session: session.publish("\ud800", b"x", exchange="x"),
    "a negative limit": lambda session: session.declare_queue("a", c.QueueOptions(length_max=-1)),
    "a negative time-out": lambda session: in_transaction(session, timeout_ms=-1),
    "half a millisecond of time-out": lambda session: in_transaction(session, timeout_ms=0.5),
    "negative credit": lambda session: consumed(session, -1),
}


@pytest.mark.parametrize("what", UNSAYABLE)
async def test_it_is_refused_and_the_session_goes_on(broker: FakeBroker, session: Session, what: str) -> None:
    for queue in ("a", "c"):
        await session.publish(queue, b"before")
    streams = len(broker.streams)
    async with asyncio.timeout(5):
        with pytest.raises((Rejected, TypeError)) as raised:
            await UNSAYABLE[what](session)
        for queue in ("a", "c"):
            await session.publish(queue, b"after")
    if isinstance(raised.value, Rejected):
        assert raised.value.code in (ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_FOUND, ErrorCode.ROLLED_BACK)
    assert len(broker.streams) == streams
    assert bodies(broker.worlds["one"].executed()) == ["before", "after"]


async def test_buffers_are_bodies(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", bytearray(b"1"))
    await session.publish("a", memoryview(b"2"))
    await session.publish("a", [bytearray(b"3"), memoryview(b"4"), b"5"])
    assert bodies(broker.worlds["one"].executed()) == ["1", "2", "3", "4", "5"]


async def test_who_shares_a_write_with_it_is_heard_and_its_own_transaction_fails(
    broker: FakeBroker, session: Session
) -> None:
    await session.publish("a", b"before")
    transaction = session.transaction()
    await transaction.publish("a", b"1")
    await transaction.publish("b", b"2", ttl_ms=-1)
    beside = asyncio.ensure_future(session.publish("b", b"3"))
    with pytest.raises(Rejected):
        await transaction.commit()
    await beside
    assert bodies(broker.worlds["one"].executed())[-1] == "3"
    assert not any(isinstance(one, c.CommitCommand) for one in broker.worlds["one"].executed())


async def test_what_is_larger_than_a_message_may_be_is_refused(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.publish("a", b"before")
    monkeypatch.setattr(session_stream, "GRPC_MESSAGE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(session_stream, "COMMAND_BYTES_MAX", 1 << 19)
    large = asyncio.ensure_future(session.publish("a", [bytes(1 << 18)] * 5))
    beside = asyncio.ensure_future(session.publish("b", b"beside"))
    await eventually(beside.done)
    with pytest.raises(Rejected) as raised:
        await large
    assert raised.value.code is ErrorCode.TOO_LARGE
    await beside
