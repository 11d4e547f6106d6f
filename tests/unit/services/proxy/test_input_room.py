"""What a worker holds of messages that no broker has answered is bounded, and whoever waits for that goes on in the end."""

import asyncio
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.input_room import InputRoom
from services.proxy.settings import ProxyLimits
from services.proxy.worker_room import WorkerRoom
from tests.amqp import codec
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_brokers import StubBatches, StubSession, StubSet, StubTransaction
from tests.amqp.stub_proxy import serving
from tests.unit.services.proxy.test_order_of_links import in_transaction

MIB = 1024 * 1024
BODY = bytes(MIB)
DEAD = "dead"
"""A queue in a set that has no primary."""
LIMITS = ProxyLimits(unanswered_bytes_max=8 * MIB)
READ_BYTES_MAX = 2 * MIB
"""What a connection may send at once beside the limit: a socket's read, and the rest of a message."""


class Wire:
    """Notes whether it is read."""

    def __init__(self) -> None:
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def rooms(count: int, bytes_max: int = 1000) -> tuple[list[Wire], list[InputRoom]]:
    shared = WorkerRoom(bytes_max)
    wires = [Wire() for _ in range(count)]
    return wires, [InputRoom(wire, shared) for wire in wires]


def are_read(wires: list[Wire]) -> list[bool]:
    return [wire.is_read for wire in wires]


def test_one_connection_gets_half_and_leaves_the_other_half() -> None:
    wires, (room, other) = rooms(2)
    for _ in range(5):
        room.take(100)
    assert are_read(wires) == [True, True]
    room.take(100)
    other.take(100)
    assert are_read(wires) == [False, True]


def test_it_is_read_again_when_it_holds_half_of_what_is_left() -> None:
    wires, (room,) = rooms(1)
    room.take(600)
    room.give_back(200)
    assert are_read(wires) == [False]
    room.give_back(100)
    assert are_read(wires) == [True]


def test_whoever_holds_nothing_is_read_however_little_is_left() -> None:
    wires, (room, other) = rooms(2)
    room.take(2000)
    other.take(1)
    assert are_read(wires) == [False, False]
    other.give_back(1)
    assert are_read(wires) == [False, True]
    room.give_back(2000)
    assert are_read(wires) == [True, True]


class Unanswered(StubBatches):
    """Nothing of it is answered until it may be."""

    def __init__(self) -> None:
        self.bytes = 0
        self.messages = 0
        self._waiting: list[Confirmation] | None = []

    def publish(self, *given: Any) -> Confirmation:
        self.messages += len(given[2])
        self.bytes += sum(len(message.body) for message in given[2])
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            confirmation.set_result(1)
        else:
            self._waiting.append(confirmation)
        return confirmation

    def answer(self) -> None:
        """From now on all is answered."""
        waiting, self._waiting = self._waiting or [], None
        for confirmation in waiting:
            confirmation.set_result(1)


class HalfDead(StubSession):
    """One of its sets has no primary."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = Unanswered()

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        found = await super().of_target(exchange, routing_key)
        return (found[0], self.dead) if routing_key == DEAD else found

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> StubTransaction:
        return InDead(self.dead)


class InDead(StubTransaction):
    """Whose messages go to the set without a primary."""

    def __init__(self, batches: Unanswered) -> None:
        super().__init__()
        self._batches = batches

    async def publish(self, routing_key: str, messages: Any, *, exchange: str = "") -> Confirmation:
        return self._batches.publish(exchange, routing_key, messages)


async def _settles(dead: Unanswered, messages: int) -> None:
    """Waits until so many have come, and no more come."""
    before = -1
    async with asyncio.timeout(20):
        while dead.messages < messages:
            await asyncio.sleep(0.005)
    while dead.messages != before:
        before = dead.messages
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("is_in_transaction", [False, True])
async def test_what_a_set_does_not_answer_fills_the_room_and_all_comes_when_it_does(
    is_in_transaction: bool,
) -> None:
    session = HalfDead()
    async with serving(LIMITS, session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", DEAD)
        state: dict[str, Any] = {}
        if is_in_transaction:
            await client.attach_coordinator(1)
            transaction = await client.declare(1)
            state = {"state": in_transaction(transaction)}
        numbers = [client.transfer_in_frames(codec.message(BODY), **state) for _ in range(40)]
        await _settles(session.dead, 4)
        assert LIMITS.unanswered_bytes_max // 2 <= session.dead.bytes
        assert session.dead.bytes <= LIMITS.unanswered_bytes_max // 2 + READ_BYTES_MAX
        async with await RawClient.begun(proxy.address) as other:
            await other.attach_sender("sender", "queue")
            assert (await other.outcome_of(other.transfer(codec.message(BODY[:1000])))).name == "accepted"
        session.dead.answer()
        assert (await client.outcome_of(numbers[-1])).name in ("accepted", "transactional_state")
        assert session.dead.messages == len(numbers)
        if is_in_transaction:
            assert (await client.discharge(transaction, 1)).name == "accepted"
        assert proxy.worker.input_room.left == LIMITS.unanswered_bytes_max


async def test_many_connections_together_fill_the_room_and_bring_one_message_each_beside_it() -> None:
    session = HalfDead()
    async with serving(LIMITS, session) as proxy:
        clients = [await RawClient.begun(proxy.address) for _ in range(6)]
        for client in clients:
            await client.attach_sender("sender", DEAD)
            for _ in range(8):
                client.transfer_in_frames(codec.message(BODY))
        await _settles(session.dead, len(clients))
        assert session.dead.bytes <= LIMITS.unanswered_bytes_max + len(clients) * MIB
        for client in clients:
            client.abort()


async def test_a_client_that_is_not_read_is_not_taken_for_dead_and_afterwards_may_be() -> None:
    session = HalfDead()
    limits = ProxyLimits(unanswered_bytes_max=2 * MIB, idle_seconds=0.5)
    async with serving(limits, session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", DEAD)
        numbers = [client.transfer_in_frames(codec.message(BODY)) for _ in range(10)]
        await asyncio.sleep(3 * limits.idle_seconds)
        session.dead.answer()
        assert (await client.outcome_of(numbers[-1])).name == "accepted"
        assert await client.expect_end() == RESOURCE_LIMIT


async def test_a_connection_that_is_not_read_ends_when_the_proxy_stops() -> None:
    session = HalfDead()
    async with serving(LIMITS, session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", DEAD)
        for _ in range(40):
            client.transfer_in_frames(codec.message(BODY))
        await _settles(session.dead, 4)
        await proxy.worker.stop()
        assert not proxy.worker.connections
