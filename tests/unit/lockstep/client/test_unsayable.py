"""What has no form on the wire is refused to whoever asked for it, and harms nobody else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstep.client import Rejected, Session, session_stream
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.xid import Xid
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies

Asking = Callable[[Any], Awaitable[object]]


TOO_LONG = c.SPAN_MS_MAX + 1


async def in_transaction(session: Session, timeout_ms: Any = 0, ttl_ms: int = 0) -> None:
    async with session.transaction(timeout_ms=timeout_ms) as transaction:
        await transaction.publish("a", b"x", ttl_ms=ttl_ms)


async def started(session: Session, transaction: Any) -> object:
    manager = await session.resource_manager("one")
    return await manager.start(Xid(1, b"g", b"b"), transaction=transaction)


async def consumed(session: Session, credit: int) -> object:
    async with await session.consume("a", credit=credit) as consumer:
        return await anext(consumer)


UNSAYABLE: dict[str, Asking] = {
    "text": lambda session: session.publish("a", "text"),
    "text among bodies": lambda session: session.publish("a", [b"x", "text"]),
    "text as properties": lambda session: session.publish("a", b"x", properties="text"),
    "nothing as properties": lambda session: session.publish("a", b"x", properties=None),
    "a number as properties": lambda session: session.publish("a", [b"x"], properties=5),
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
    "no credit": lambda session: consumed(session, 0),
    "no message": lambda session: session.publish("a", []),
    "no message of an iterator": lambda session: session.publish("a", iter(())),
    "a number": lambda session: session.publish("a", 5),
    "a time to live that is no span": lambda session: session.publish("a", b"x", ttl_ms=TOO_LONG),
    "one among many that lives too long": lambda session: session.publish(
        "a", [c.OutgoingMessage(b"", b"x"), c.OutgoingMessage(b"", b"y", ttl_ms=TOO_LONG)]
    ),
    "one that lives too long in a transaction": lambda session: in_transaction(session, ttl_ms=TOO_LONG),
    "a queue whose messages live too long": lambda session: session.declare_queue(
        "a", c.QueueOptions(message_ttl_ms=TOO_LONG)
    ),
    "a queue whose messages have lived": lambda session: session.declare_queue(
        "a", c.QueueOptions(message_ttl_ms=-1)
    ),
    "a time-out that is no span": lambda session: in_transaction(session, timeout_ms=TOO_LONG),
    "a branch of no transaction": lambda session: started(session, (0, 1)),
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


@pytest.mark.parametrize("in_a_transaction", [False, True])
@pytest.mark.parametrize("given", [None, 5, "text"])
async def test_what_is_no_bytes_is_refused_before_it_is_among_what_others_ask_for(
    broker: FakeBroker, session: Session, given: Any, *, in_a_transaction: bool
) -> None:
    await session.publish("a", b"before")
    publish = session.transaction().publish if in_a_transaction else session.publish
    asked: list[Awaitable[object]] = [
        publish("a", b"x", properties=given),
        publish("a", [b"x"], properties=given),
        publish("a", c.OutgoingMessage(given, b"x")),
        publish("a", [b"x", c.OutgoingMessage(b"", given)]),
    ]
    async with session.transaction() as transaction:
        await transaction.publish("b", b"1")
        async with asyncio.timeout(5):
            refused = await asyncio.gather(*asked, transaction.publish("b", b"2"), return_exceptions=True)
    kinds = [error.code if isinstance(error, Rejected) else None for error in refused]
    assert kinds == [ErrorCode.INVALID_ARGUMENT] * len(asked) + [None]
    assert bodies(broker.worlds["one"].executed()) == ["before", "1", "2"]


async def test_buffers_are_bodies(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", bytearray(b"1"))
    await session.publish("a", memoryview(b"2"))
    await session.publish("a", [bytearray(b"3"), memoryview(b"4"), b"5"])
    assert bodies(broker.worlds["one"].executed()) == ["1", "2", "3", "4", "5"]


async def test_what_makes_bodies_is_read_to_its_end_once(broker: FakeBroker, session: Session) -> None:
    mixed: list[bytearray | c.OutgoingMessage] = [bytearray(b"4"), c.OutgoingMessage(b"", b"5")]
    async with asyncio.timeout(5):
        await session.publish("a", (b"%d" % number for number in range(2)))
        await session.publish("a", map(str.encode, ("2", "3")))
        await session.publish("a", iter(mixed))
        async with session.transaction() as transaction:
            await transaction.publish("a", (body for body in (b"6", b"7")))
    assert bodies(broker.worlds["one"].executed()) == list("01234567")


async def test_who_shares_a_batch_with_it_is_heard(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", b"before")
    streams = len(broker.streams)
    bad = asyncio.ensure_future(session.publish("a", b"1", ttl_ms=TOO_LONG))
    async with asyncio.timeout(5):
        await session.publish("a", b"2")
        with pytest.raises(Rejected, match="time to live is above") as raised:
            await bad
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    assert bodies(broker.worlds["one"].executed()) == ["before", "2"]
    assert len(broker.streams) == streams


@pytest.mark.parametrize("session_timeout_ms", [-1, TOO_LONG, 0.5, None])
def test_no_session_has_a_time_out_that_cannot_be_said(session_timeout_ms: Any) -> None:
    with pytest.raises(ValueError, match="session_timeout_ms is"):
        SessionSettings(session_timeout_ms=session_timeout_ms)


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
    monkeypatch.setattr(session_stream, "MESSAGE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(session_stream, "COMMAND_BYTES_MAX", 1 << 19)
    large = asyncio.ensure_future(session.publish("a", [bytes(1 << 18)] * 5))
    beside = asyncio.ensure_future(session.publish("b", b"beside"))
    await eventually(beside.done)
    with pytest.raises(Rejected) as raised:
        await large
    assert raised.value.code is ErrorCode.TOO_LARGE
    await beside
