"""Sessions that end, or that nobody holds any more; and names that sets do not know any more."""

import asyncio
import gc

import pytest

import lockstep
from lockstep.client import Client, Rejected, Session, directory
from lockstep.core.errors import ErrorCode
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies


async def test_a_session_that_nobody_holds_ends_with_its_client(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    await client.session().publish("a", b"x")
    gc.collect()
    await client.close()
    assert broker.worlds["one"].ended


async def test_a_consumer_of_a_session_that_nobody_holds_ends_with_its_client(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    consumer = await client.session().consume("a", credit=4)
    gc.collect()
    await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
    await client.close()
    assert broker.worlds["one"].ended
    with pytest.raises(Rejected):
        await anext(consumer)


async def test_what_waits_for_room_ends_with_its_session(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = client.session()
    await session.publish("a", b"x")
    port, _ = next(iter(session._sets.values()))
    monkeypatch.setattr(port, "BACKLOG_BYTES_MAX", -1)
    waiting = asyncio.ensure_future(session.publish("a", b"y"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await session.close()
    async with asyncio.timeout(3):
        with pytest.raises(Rejected):
            await waiting


async def test_who_publishes_faster_than_can_be_said_waits(session: Session) -> None:
    await session.publish("a", b"x")
    port, batches = next(iter(session._sets.values()))
    body, most = bytes(1 << 16), 0
    for _ in range(2 * port.BACKLOG_BYTES_MAX // len(body)):
        await session.publish_soon("a", body)
        most = max(most, sum(batch.size for batch in batches._batches))
    assert most <= port.BACKLOG_BYTES_MAX + len(body)


@pytest.mark.parametrize("way", ["publish", "transaction"])
async def test_a_queue_that_its_set_does_not_know_is_looked_for_again(
    broker: FakeBroker, session: Session, way: str
) -> None:
    await session.publish("a", b"1")
    broker.refusals["a"] = (ErrorCode.NOT_FOUND, 0)
    broker.directory["a"] = "two"
    if way == "publish":
        with pytest.raises(Rejected):
            await session.publish("a", b"2")
    else:
        with pytest.raises(Rejected):
            async with session.transaction() as transaction:
                await transaction.publish("a", b"2")
    broker.refusals.clear()
    await session.publish("a", b"3")
    assert bodies(broker.worlds["two"].executed()) == ["3"]


async def test_names_are_not_remembered_without_end(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "NAMES_MAX", 10)
    for number in range(30):
        broker.directory[f"reply-{number}"] = "one"
        await session.publish(f"reply-{number}", b"x")
    assert len(session._directory._names) == 10


async def test_a_client_that_is_closed_opens_nothing(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    await client.close()
    with pytest.raises(Rejected, match="the client is closed") as raised:
        client.session()
    assert raised.value.code is ErrorCode.ILLEGAL_STATE
    for transaction_id in ("one/5.1", "0" * 32):
        with pytest.raises(Rejected, match="the client is closed"):
            await client.get_outcome(transaction_id)
