"""Who publishes faster than a set answers waits, in line with others who do, and lets what gathers be written."""

import asyncio

import pytest

from lockstep.client import Session, session_events
from lockstep.client.command_batches import BATCH_MESSAGES_MAX, CommandBatches
from lockstep.client.command_window import MESSAGE_BYTES
from lockstep.client.set_session import SetSession
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies


async def in_one(session: Session) -> tuple[SetSession, CommandBatches]:
    """The session in the set of queue `a`, which has answered something."""
    await session.publish("a", b"first")
    return next(iter(session._sets.values()))


def limit(port: SetSession, backlog_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "BACKLOG_BYTES_MAX", backlog_bytes)


async def test_who_comes_while_others_wait_lines_up_behind_them(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = await in_one(session)
    order: list[int] = []

    async def enter(number: int) -> None:
        await port.room()
        order.append(number)
        if number == 0:
            limit(port, -1, monkeypatch)  # He has filled it again.

    limit(port, -1, monkeypatch)
    entering = [asyncio.ensure_future(enter(number)) for number in range(3)]
    await asyncio.sleep(0)
    limit(port, 1 << 20, monkeypatch)
    port.feed(session_events.Turn())
    entering.append(asyncio.ensure_future(enter(3)))
    await asyncio.sleep(0.01)
    assert order == [0]
    limit(port, 1 << 20, monkeypatch)
    entering.append(asyncio.ensure_future(enter(4)))
    await asyncio.sleep(0)
    port.feed(session_events.Turn())
    async with asyncio.timeout(5):
        await asyncio.gather(*entering)
    assert order == [0, 1, 2, 3, 4]


async def test_who_is_called_before_the_first_of_the_line_lets_him_go_first(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = await in_one(session)
    order: list[int] = []

    async def enter(number: int) -> None:
        await port.room()
        order.append(number)

    def make_room() -> None:
        limit(port, 1 << 20, monkeypatch)
        port.feed(session_events.Turn())

    def call_the_second_and_take_the_room() -> None:
        port.loop.call_soon(
            make_room
        )  # When the first has looked in vain, and the second has not looked yet.
        port.feed(session_events.Turn())
        limit(port, -1, monkeypatch)

    limit(port, -1, monkeypatch)
    entering = [asyncio.ensure_future(enter(0))]
    await asyncio.sleep(0)
    entering.append(asyncio.ensure_future(enter(1)))
    port.loop.call_soon(call_the_second_and_take_the_room)
    make_room()
    async with asyncio.timeout(5):
        await asyncio.gather(*entering)
    assert order == [0, 1]


async def test_all_who_line_up_to_let_others_run_go_on(session: Session) -> None:
    port, _ = await in_one(session)
    port.has_complete = True
    entering = [asyncio.ensure_future(port.room()) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [one.done() for one in entering] == [True] * 3, "nothing that is heard has to call them"


async def test_who_gives_up_in_the_line_holds_up_nobody(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = await in_one(session)
    limit(port, -1, monkeypatch)
    entering = [asyncio.ensure_future(port.room()) for _ in range(2)]
    await asyncio.sleep(0)
    limit(port, 1 << 20, monkeypatch)
    port.feed(session_events.Turn())
    entering.append(asyncio.ensure_future(port.room()))
    entering[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*entering[1:])
    assert entering[0].cancelled()


async def test_empty_bodies_fill_a_backlog_too(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = await in_one(session)
    limit(port, 2_000 * MESSAGE_BYTES, monkeypatch)
    broker.is_holding = True

    async def publish(count: int) -> None:
        for _ in range(count):
            await session.publish_soon("a", b"")

    publishing = asyncio.ensure_future(publish(5_000))
    await eventually(lambda: port.is_full or publishing.done())
    assert not publishing.done()
    assert port.gathered_bytes + port.core.window.bytes < 2_100 * MESSAGE_BYTES
    await broker.commit()
    await publishing


async def test_what_gathers_is_written_while_its_caller_goes_on(broker: FakeBroker, session: Session) -> None:
    port, _ = await in_one(session)
    for _ in range(BATCH_MESSAGES_MAX + 1):
        await session.publish_soon("a", b"x")
    assert port.core.window.last == 2


async def test_in_a_transaction_too_who_publishes_faster_than_can_be_said_waits(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = await in_one(session)
    transaction = session.transaction()
    await transaction.publish("a", b"1")
    broker.is_holding = True
    limit(port, -1, monkeypatch)
    publishing = asyncio.ensure_future(transaction.publish("a", b"2"))
    await asyncio.sleep(0.02)
    assert not publishing.done()
    limit(port, 1 << 20, monkeypatch)
    await broker.commit()
    async with asyncio.timeout(5):
        await publishing
        await transaction.commit()
    assert bodies(broker.worlds["one"].executed()) == ["first", "1", "2"]
