"""What a link has sent keeps its order, and happens when the link or its connection ends in order."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation, RefusedTogether
from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.traffic import End
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_brokers import MISSING, StubBatches, StubSession, StubSet, StubTransaction
from tests.amqp.stub_proxy import serving
from tests.unit.services.proxy.test_order_of_links import Recorded, in_transaction

ROOM = 5
"""Messages that the queue takes."""


class SmallQueue(StubBatches):
    """A queue that takes `ROOM` messages, and all or none of a command; answers when it is told to."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.refusals = Rejected
        self._unanswered: list[tuple[Confirmation, Sequence[Any]]] = []
        self.ttls_ms: list[int] = []
        """Of all that was published."""
        self.together_max = 1000

    def together(self, exchange: str, routing_key: str) -> int:
        return self.together_max

    def publish(self, *given: Any) -> Confirmation:
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        self._unanswered.append((confirmation, given[2]))
        self.ttls_ms += [message.ttl_ms for message in given[2]]
        return confirmation

    @property
    def unanswered(self) -> int:
        return sum(len(messages) for _, messages in self._unanswered)

    async def answer(self) -> None:
        """All, and what is tried again because of that."""
        while self._unanswered:
            commands, self._unanswered = self._unanswered, []
            for confirmation, messages in commands:
                if len(self.messages) + len(messages) > ROOM:
                    confirmation.set_exception(self.refusals(ErrorCode.QUEUE_FULL, "full"))
                else:
                    self.messages += [int(message.body) for message in messages]
                    confirmation.set_result(1)
            await asyncio.sleep(0)


class SlowDirectory(StubSession):
    """Every look-up waits until it may go on."""

    def __init__(self, batches: StubBatches) -> None:
        super().__init__()
        self.batches = batches
        self.may_go_on = asyncio.Event()
        self.history: list[str] = []
        """Of its transaction."""

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> StubTransaction:
        return Recorded(self.history, 1)

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        await self.may_go_on.wait()
        return await super().of_target(exchange, routing_key)


@pytest.fixture
def queue() -> SmallQueue:
    return SmallQueue()


@pytest.fixture
async def client(queue: SmallQueue) -> AsyncIterator[RawClient]:
    """With a link that sends to the small queue."""
    session = StubSession()
    session.batches = queue
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue")
        yield client


async def send(client: RawClient, queue: SmallQueue, numbers: Sequence[int]) -> None:
    """In one write; returns when the proxy has published them."""
    expected = queue.unanswered + len(numbers)
    client.send(*[_transfer(number) for number in numbers])
    await published(queue, expected)


async def published(queue: SmallQueue, count: int) -> None:
    """Waits until so many messages are unanswered."""
    async with asyncio.timeout(10):
        while queue.unanswered < count:
            await asyncio.sleep(0.005)


def _transfer(number: int, *sections: bytes) -> bytes:
    return performative(
        "transfer",
        0,
        codec.message(b"%d" % number, *sections),
        handle=0,
        delivery_id=number,
        delivery_tag=codec.binary(b"%d" % number),
        message_format=0,
    )


async def test_a_message_that_says_when_it_expires_lives_until_then_by_the_proxys_clock(
    client: RawClient, queue: SmallQueue
) -> None:
    now_ms = int(time.time() * 1000)
    ends = [now_ms + 3_600_000, now_ms - 1, 0]
    client.send(*[_transfer(number, _expiring(end)) for number, end in enumerate(ends)])
    await published(queue, len(ends))
    await queue.answer()
    later, past, never = queue.ttls_ms
    assert 3_000_000 < later <= 3_600_000
    assert (past, never) == (1, 0)


def _expiring(absolute_expiry_ms: int) -> bytes:
    """A properties section."""
    timestamp = struct.pack(">Bq", 0x83, absolute_expiry_ms)
    return codec.described(codec.ulong(0x73), codec.sequence(*[codec.NULL] * 8, timestamp))


async def test_a_full_queue_refuses_what_it_has_no_room_for(client: RawClient, queue: SmallQueue) -> None:
    await send(client, queue, range(8))
    await queue.answer()
    assert queue.messages == [0, 1, 2, 3, 4]
    assert (await client.outcome_of(4)).name == "accepted"
    refused = await client.outcome_of(5)
    assert codec.named(refused["error"])["condition"] == RESOURCE_LIMIT


async def test_what_a_full_queue_refuses_does_not_come_behind_what_was_sent_later(
    client: RawClient, queue: SmallQueue
) -> None:
    await send(client, queue, range(8))
    await send(client, queue, [8, 9])
    await queue.answer()
    assert queue.messages == [8, 9]
    assert {(await client.outcome_of(number)).name for number in range(8)} == {"rejected"}
    assert (await client.outcome_of(9)).name == "accepted"


async def test_what_was_sent_after_a_refusal_comes_behind_what_is_tried_again(
    client: RawClient, queue: SmallQueue
) -> None:
    await send(client, queue, range(6))
    await send(client, queue, range(6, 9))
    await queue.answer()
    await send(client, queue, range(9, 12))
    await queue.answer()
    assert queue.messages == [6, 7, 8, 9, 10]


async def test_what_comes_together_is_published_in_parts_that_a_set_takes_and_keeps_its_order(
    client: RawClient, queue: SmallQueue
) -> None:
    queue.together_max = 2
    await send(client, queue, range(3))
    assert [len(messages) for _, messages in queue._unanswered] == [2, 1]
    await send(client, queue, range(3, 5))
    await queue.answer()
    assert queue.messages == [0, 1, 2, 3, 4]
    assert (await client.outcome_of(4)).name == "accepted"


async def test_a_message_that_was_refused_because_of_another_connections_is_tried_again(
    client: RawClient, queue: SmallQueue
) -> None:
    await send(client, queue, [0])
    queue.refusals = RefusedTogether
    queue.messages = [*range(100, 100 + ROOM)]
    confirmation, messages = queue._unanswered.pop()
    confirmation.set_exception(RefusedTogether(ErrorCode.QUEUE_FULL, "full"))
    queue.messages.pop()
    await asyncio.sleep(0.01)
    assert queue.unanswered == len(messages)
    await queue.answer()
    assert queue.messages[-1] == 0
    assert (await client.outcome_of(0)).name == "accepted"


@pytest.mark.parametrize("last", ["detach", "close"])
async def test_what_waits_for_an_address_is_published_though_its_link_ends(
    last: str, queue: SmallQueue
) -> None:
    session = SlowDirectory(queue)
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("relay", None)
        for number in range(3):
            client.transfer(_addressed(number), settled=number != 1)
        client.say(last, **({"handle": 0, "closed": True} if last == "detach" else {}))
        await client.expect(last)
        session.may_go_on.set()
        await published(queue, 3)
        await queue.answer()
        assert queue.messages == [0, 1, 2]
        assert proxy.worker.input_room.left == proxy.worker.settings.limits.unanswered_bytes_max


async def test_of_a_transaction_nothing_is_published_when_the_link_ends_before_its_address_is_known(
    queue: SmallQueue,
) -> None:
    session = SlowDirectory(queue)
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator(1)
        await client.attach_sender("relay", None)
        transaction = await client.declare(1)
        client.transfer(_addressed(0), state=in_transaction(transaction))
        client.transfer(_addressed(1), settled=True)
        client.say("detach", handle=0, closed=True)
        await client.expect("detach")
        session.may_go_on.set()
        assert (await client.discharge(transaction, 1)).name == "rejected"
        assert session.history == []
        await published(queue, 1)
        await queue.answer()
        assert queue.messages == [1]
        assert session.history == []


async def test_a_link_that_has_ended_is_not_told_that_an_address_is_none(queue: SmallQueue) -> None:
    session = SlowDirectory(queue)
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("relay", None)
        for number in range(3):
            client.transfer(_addressed(number, f"queue://{MISSING}"))
        client.say("detach", handle=0, closed=True)
        await client.expect("detach")
        session.may_go_on.set()
        async with asyncio.timeout(10):
            while proxy.worker.traffic.messages_in[End.REFUSED] < 3:
                await asyncio.sleep(0.005)
        await client.attach_sender("next", None, 1)
        told = [frame["state"] for frame in client.passed if frame.name == "disposition"]
        assert told == [None] * len(told)


async def test_what_waits_for_an_address_is_not_published_when_the_connection_is_lost(
    queue: SmallQueue,
) -> None:
    session = SlowDirectory(queue)
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("relay", None)
        client.transfer(_addressed(0))
        await client.sent()
        while not proxy.worker.input_room.left < proxy.worker.settings.limits.unanswered_bytes_max:
            await asyncio.sleep(0.005)
        client.abort()
        while proxy.worker.connections:
            await asyncio.sleep(0.005)
        session.may_go_on.set()
        await asyncio.sleep(0.05)
        assert not queue.unanswered
        assert proxy.worker.input_room.left == proxy.worker.settings.limits.unanswered_bytes_max


def _addressed(number: int, address: str = "queue") -> bytes:
    return codec.message(b"%d" % number, composite("properties", to=address))
