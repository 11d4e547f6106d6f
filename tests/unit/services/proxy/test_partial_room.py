"""Messages of which clients have sent a part: so much of a connection and of a worker."""

import asyncio

import pytest

from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.partial_room import ALWAYS_BYTES, PartialRoom
from services.proxy.settings import ProxyLimits
from services.proxy.worker_room import WorkerRoom
from tests.amqp import codec
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_proxy import serving
from tests.unit.services.proxy.test_limits import lines


def exceeded(room: PartialRoom) -> str:
    """As it is now."""
    return room.exceeded


def test_a_connection_has_no_more_than_it_leaves_but_some_in_any_case() -> None:
    worker = WorkerRoom(6 * ALWAYS_BYTES)
    first, second, third = (PartialRoom(worker, 80 * ALWAYS_BYTES) for _ in range(3))
    first.take(3 * ALWAYS_BYTES)
    assert not exceeded(first)
    first.take(1)
    assert exceeded(first) == "partials_bytes_max"
    first.give_back(1)
    second.take(3 * ALWAYS_BYTES // 2 + 1)
    assert exceeded(second) and exceeded(first)
    second.give_back(ALWAYS_BYTES // 2 + 1)
    third.take(ALWAYS_BYTES)
    second.take(1)
    assert not exceeded(third), "it is full of what others have, and this one may have a little"
    third.take(1)
    assert exceeded(third)
    for room in (first, second, third):
        room.give_back(room.held)
        assert not exceeded(room)
    assert worker.left == 6 * ALWAYS_BYTES


def test_a_connection_has_a_limit_of_its_own() -> None:
    room = PartialRoom(WorkerRoom(1 << 30), 100)
    room.take(100)
    assert not exceeded(room)
    room.take(1)
    assert exceeded(room) == "partial_bytes_max"


def test_some_connections_may_hold_as_much_as_each_may() -> None:
    limits = ProxyLimits()
    assert limits.partials_bytes_max - 5 * limits.partial_bytes_max >= limits.partial_bytes_max


async def test_unfinished_messages_of_all_connections_end_the_link_that_has_more_than_it_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ProxyLimits(partials_bytes_max=3 * ALWAYS_BYTES)
    async with (
        serving(limits) as proxy,
        await RawClient.begun(proxy.address) as first,
        await RawClient.begun(proxy.address) as greedy,
        await RawClient.begun(proxy.address) as modest,
    ):
        room = proxy.worker.partials

        async def holds(size: int) -> None:
            async with asyncio.timeout(20):
                while not size <= limits.partials_bytes_max - room.left < size + 1_000:
                    await asyncio.sleep(0.005)

        for client in (first, greedy, modest):
            await client.attach_sender("sender", "queue")
        first.transfer(bytes(90_000), more=True)
        await holds(90_000)
        greedy.transfer(bytes(80_000), more=True)
        detach = await greedy.expect("detach")
        assert detach.condition == RESOURCE_LIMIT
        assert "on all connections together" in detach["error"].value[1]
        (line,) = lines(caplog, "partials_bytes_max")
        assert "container" in line
        await holds(90_000)
        whole = codec.message(bytes(60_000))
        number = modest.transfer(whole[:-10], more=True)
        await holds(150_000)
        modest.say("transfer", 0, whole[-10:], handle=0, delivery_id=number, more=False)
        assert (await modest.outcome_of(number)).name == "accepted"
        await holds(90_000)
        first.abort()
        await holds(0)
        assert room.left == limits.partials_bytes_max
