"""Strangers at the ports of a cluster, each in a process of its own: floods of names, links, messages, calls, frames and bytes.

`python -m tests.chaos.attackers NAME BROKER PROXY COORDINATOR SET SECONDS`: attacks for about so long, and ends without a word.
Whatever it is told is of no interest: refusals, too, are answers.
"""

import asyncio
import contextlib
import logging
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc.aio

import lockstep
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession, Heartbeat
from lockstep.runtime.channels import open_channel
from lockstep.runtime.session_codec import encode_request
from lockstep.wire.v1 import cluster_pb2, coordinator_pb2, transactions_pb2
from lockstep.wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.amqp import codec
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender, begin, credit
from tests.unit.lockstep.runtime.serialized import whole
from tests.unit.lockstep.transport import raw_http2 as h

LINKS = 400
"""On one connection: below what it may have."""
BODY_BYTES = 4 << 20
"""Of what is big by its parts."""
STATUS = "/lockstep.wire.v1.Cluster/GetStatus"
_EMPTY = h.message(b"")
_WORST = " OR ".join(["p LIKE '%" + "_" * 100 + "b%'"] * 34)
_LONG = codec.described(codec.ulong(0x74), codec.mapping(codec.string("p"), codec.string("a" * 65_535)))
"""Application properties."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, and until when."""

    broker: str
    proxy: str
    coordinator: str
    set_name: SetName
    """Of which that broker was the primary."""
    until: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def port(self) -> int:
        return int(self.broker.rpartition(":")[2])


# --- AMQP ---


async def new_names(target: Target) -> None:
    """Senders to queues that are not there: 3,000 at once, again and again."""
    number = 0
    while not target.is_over:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                client = await stack.enter_async_context(await RawClient.begun(target.proxy))
                number += 1
                names = (f"flood-{number}-{handle}" for handle in range(750))
                client.send(*(attach_sender(name, name, handle) for handle, name in enumerate(names)))
            await asyncio.sleep(5)


async def durable_subscriptions(target: Target) -> None:
    """Two containers that subscribe to 400 topics each, durably, as an application server does at its start."""
    async with contextlib.AsyncExitStack() as stack:
        for container in ("one", "other"):
            client = await stack.enter_async_context(await RawClient.opened(target.proxy, container))
            await client.begin()
            client.send(*(_subscription(handle) for handle in range(LINKS)))
        await _wait(target)


def _subscription(handle: int) -> bytes:
    source = composite(
        "source",
        address=f"topic://news/flood{handle}",
        durable=codec.uint(2),
        expiry_policy=codec.symbol("never"),
    )
    return attach_receiver(f"subscription-{handle}", "", handle, source=source)


async def costly_consumer(target: Target) -> None:
    """Messages with a long property, and a consumer whose selector looks through it in the dearest way."""
    async with await RawClient.begun(target.proxy) as client:
        await client.attach_sender("bomb", "bomb")
        for _ in range(10):
            client.transfer(codec.message(b"x", _LONG), settled=True)
        selector = codec.described(codec.symbol("apache.org:selector-filter:string"), codec.string(_WORST))
        source = composite("source", address="bomb", filter=codec.mapping(codec.symbol("selector"), selector))
        client.send(attach_receiver("looks", "bomb", 1, source=source), credit(1, 100))
        await _wait(target)


async def costly_bindings(target: Target) -> None:
    """Bindings with such selectors, and publishes to them."""
    async with await lockstep.connect(target.broker) as client, client.session() as session:
        for number in range(12):
            await session.declare_queue(f"bomb-{number}")
            selector = f"{_WORST} OR q = {number}"
            await session.bind("bombs", f"bomb-{number}", "#", (("lockstep:selector", selector),))
    while not target.is_over:
        async with await RawClient.begun(target.proxy) as sender:
            await sender.attach_sender("bomb", "bombs/k")
            sender.transfer(codec.message(b"x", _LONG), settled=False)
            await asyncio.sleep(2)


async def empty_frames(target: Target) -> None:
    """Heartbeats on twenty connections, 10,000 a second on each."""

    async def one() -> None:
        async with await RawClient.begun(target.proxy) as client:
            while not target.is_over and not client.is_at_end:
                client.send(struct.pack(">IBBH", 8, 2, 0, 0) * 1000)
                await client.skip(0.1)

    await asyncio.gather(*(one() for _ in range(20)))


async def many_entries(target: Target) -> None:
    """Messages of 4 MiB that are annotations, or properties, of one or two bytes each."""
    annotations = _entries(0x72, codec.ulong(0) + b"\x40")
    properties = _entries(0x74, codec.string("") + b"\x40")
    while not target.is_over:
        async with await RawClient.begun(target.proxy) as client:
            await client.attach_sender("entries", "entries")
            for section in (annotations, properties):
                await client.outcome_of(client.transfer_in_frames(codec.message(b"x", section)))


def _entries(section: int, entry: bytes) -> bytes:
    count = BODY_BYTES // len(entry)
    return codec.described(
        codec.ulong(section), struct.pack(">BII", 0xD1, 4 + count * len(entry), 2 * count) + entry * count
    )


async def refused_links(target: Target) -> None:
    """1,000 on each of four connections, whose sources name nothing."""
    while not target.is_over:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                client = await stack.enter_async_context(await RawClient.begun(target.proxy))
                source = composite("source")
                attaches = [
                    attach_receiver(f"r{number}", "", number, source=source) for number in range(1000)
                ]
                client.send(*attaches)
            await asyncio.sleep(2)


async def sessions_with_many_links(target: Target) -> None:
    """2,000 links to a queue that is there, and the end of their session, again and again."""
    async with await RawClient.opened(target.proxy) as client:
        while not target.is_over and not client.is_at_end:
            client.send(begin())
            client.send(*(attach_sender(f"s{number}", "bomb", number) for number in range(2000)))
            client.say("end")
            await client.sent()
            for _ in range(20):
                await client.skip(0.1)


async def big_deliveries(target: Target) -> None:
    """Three connections to which 30 MiB are delivered, which settle nothing and come again."""
    async with await lockstep.connect(target.broker) as client, client.session() as session:
        await session.declare_queue("big", set_name=target.set_name)
        for _ in range(6):
            await session.publish("big", bytes(5 << 20))

    async def one() -> None:
        while not target.is_over:
            async with await RawClient.begun(target.proxy) as client:
                await client.attach_receiver("big", "big")
                client.send(credit(0, 100, incoming_window=100_000))
                waited = 0.0
                while waited < 0.2 and not target.is_over:  # Then all has come.
                    begun = time.monotonic()
                    await client.skip(0.2)
                    waited = time.monotonic() - begun

    await asyncio.gather(*(one() for _ in range(3)))


# --- HTTP/2 ---


async def idle_calls(target: Target) -> None:
    """20,000 calls that say nothing more."""
    await _calls(target, 20_000, lambda stream: h.request(stream, STATUS))


async def untaken_answers(target: Target) -> None:
    """20,000 calls whose answers are never taken."""

    def call(stream: int) -> bytes:
        return h.request(stream, STATUS) + h.frame(h.DATA, h.END_STREAM, stream, _EMPTY)

    await _calls(target, 20_000, call, h.PREFACE + h.settings((4, 0)))


async def long_fields(target: Target) -> None:
    """Requests with 60 KB of fields each, by few bytes: one long field is in the table, and named again and again."""
    size = 3900 - 127
    long_field = b"\x40\x01x\x7f" + bytes(((size & 127) | 128, size >> 7)) + b"z" * 3900
    first = h.frame(h.HEADERS, h.END_HEADERS, 1, h.request_fields(STATUS) + long_field)

    def call(stream: int) -> bytes:
        return h.frame(h.HEADERS, h.END_HEADERS, stream, h.request_fields(STATUS) + b"\xbe" * 15)

    await _calls(target, 3_000, call, h.GREETING + first)


async def resets(target: Target) -> None:
    """Calls that are begun and reset, on ten connections, 900 every two seconds on each."""

    async def one() -> None:
        stream = 1
        client = await h.RawClient.connect(target.port)
        reading = asyncio.ensure_future(_read(client))
        while not target.is_over and not client.is_over:
            for _ in range(900):
                reset = h.frame(h.RST_STREAM, 0, stream, struct.pack(">I", 8))
                client.send(h.request(stream, STATUS), h.frame(h.DATA, h.END_STREAM, stream, _EMPTY), reset)
                stream += 2
            await asyncio.sleep(2.05)
        reading.cancel()
        await client.close()

    await asyncio.gather(*(one() for _ in range(10)))


async def state_hashes(target: Target) -> None:
    """200 calls a second for the hash of the whole state."""
    request = h.message(cluster_pb2.GetClusterStatusRequest(with_state_hash=True).SerializeToString())

    def call(stream: int) -> bytes:
        return h.request(stream, STATUS) + h.frame(h.DATA, h.END_STREAM, stream, request)

    await _calls(target, 1 << 20, call, pause_seconds=1 / 200)


async def pings(target: Target) -> None:
    """As many as the peer takes."""
    client = await h.RawClient.connect(target.port)
    reading = asyncio.ensure_future(_read(client))
    while not target.is_over and not client.is_over:
        client.send(*[h.frame(h.PING, 0, 0, b"12345678")] * 1000)
        with contextlib.suppress(OSError):
            await client.writer.drain()
    reading.cancel()
    await client.close()


async def late_data(target: Target) -> None:
    """For a call that is over, as much as the peer takes, on four connections."""

    async def one() -> None:
        while not target.is_over:
            client = await h.RawClient.connect(target.port)
            client.send(h.request(1, "/nobody/Nothing"))
            await client.end_of(1)
            reading = asyncio.ensure_future(_read(client))
            while not client.is_over and not target.is_over:
                client.send(*[h.frame(h.DATA, 0, 1, bytes(16_384))] * 16)
                with contextlib.suppress(OSError):
                    await client.writer.drain()
                await asyncio.sleep(0)
            reading.cancel()
            await client.close()
            await asyncio.sleep(0.5)

    await asyncio.gather(*(one() for _ in range(4)))


async def session_heartbeats(target: Target) -> None:
    """On streams of twenty clients, 2,000 a second on each."""

    async def one(number: int) -> None:
        attach = AttachSession(
            target.set_name, SessionId(f"flood-{number}"), SessionKey(0), Epoch(0), 10_000, 0, ()
        )
        heartbeat = h.message(whole(encode_request(target.set_name, (Heartbeat(),))))
        client = await h.RawClient.connect(target.port)
        client.send(
            h.request(1, "/lockstep.wire.v1.Sessions/Open"),
            h.frame(h.DATA, 0, 1, h.message(whole(encode_request(target.set_name, (attach,))))),
        )
        reading = asyncio.ensure_future(_read(client))
        while not client.is_over and not target.is_over:
            client.send(h.frame(h.DATA, 0, 1, heartbeat) * 200)
            await asyncio.sleep(0.1)
        reading.cancel()
        await client.close()

    await asyncio.gather(*(one(number) for number in range(20)))


async def many_fields(target: Target) -> None:
    """Publishes of 4 MiB that are headers without a name, two bytes each."""
    headers = bytes((5 << 3 | 2, 0)) * (BODY_BYTES // 2)
    size = bytearray()
    rest = len(headers)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    size.append(rest)
    request = transactions_pb2.PublishRequest(transaction_id="none", routing_key="bomb").SerializeToString()
    data = h.message(request + bytes((5 << 3 | 2,)) + size + headers)
    while not target.is_over:
        client = await h.RawClient.connect(target.port)
        client.send(h.request(1, "/lockstep.wire.v1.Transactions/Publish"))
        for at in range(0, len(data), 16_384):
            part = data[at : at + 16_384]
            await client.room(1, len(part))
            client.send(h.frame(h.DATA, 0 if at + len(part) < len(data) else h.END_STREAM, 1, part))
            client.sent += len(part)
        await client.end_of(1)
        await client.close()


async def many_participants(target: Target) -> None:
    """Commits that name 100,000 of them, four at a time."""
    names = [f"set:{number}" for number in range(100_000)]
    channel = open_channel(target.coordinator)
    stub = CoordinatorStub(channel)

    async def one() -> None:
        begun = await stub.Begin(coordinator_pb2.BeginDistributedRequest())
        request = coordinator_pb2.CommitDistributedRequest(
            transaction_id=begun.transaction_id, generation=begun.generation, participants=names
        )
        while not target.is_over:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Commit(request, timeout=5)
            await asyncio.sleep(0.1)

    try:
        await asyncio.gather(*(one() for _ in range(4)))
    finally:
        await channel.close()


async def _calls(
    target: Target,
    count: int,
    call: Callable[[int], bytes],
    greeting: bytes = h.GREETING,
    pause_seconds: float = 0.0,
) -> None:
    """So many on one connection, from stream 3 on, which stays; another one where it was closed."""
    while not target.is_over:
        client = await h.RawClient.connect(target.port, greeting)
        reading = asyncio.ensure_future(_read(client))
        for number in range(count):
            if client.is_over or target.is_over:
                break
            client.send(call(3 + 2 * number))
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            elif number % 200 == 0:
                with contextlib.suppress(OSError):
                    await client.writer.drain()
        while not client.is_over and not target.is_over:
            await asyncio.sleep(0.1)
        reading.cancel()
        await client.close()
        await asyncio.sleep(0.5)


async def _read(client: h.RawClient) -> None:
    while not client.is_over:
        await client.receive()
        client.frames.clear()


async def _wait(target: Target) -> None:
    while not target.is_over:
        await asyncio.sleep(0.1)


NAMES_AND_CALLS = (
    *(new_names, durable_subscriptions, costly_consumer, costly_bindings),
    *(idle_calls, untaken_answers, long_fields, resets, state_hashes, pings),
)
CONTENTS_AND_LINKS = (
    *(empty_frames, many_entries, refused_links, sessions_with_many_links, big_deliveries),
    *(late_data, session_heartbeats, many_fields, many_participants),
)
ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack for attack in (*NAMES_AND_CALLS, *CONTENTS_AND_LINKS)
}


async def _main(name: str, target: Target) -> None:
    while not target.is_over:
        with contextlib.suppress(Exception):  # It may have been thrown out: it comes again.
            async with asyncio.timeout(target.until - time.monotonic()):
                await ATTACKS[name](target)
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # Of each write behind the end of a connection it says something.
    _, named, at_broker, at_proxy, at_coordinator, of_set, for_seconds = sys.argv
    end = time.monotonic() + float(for_seconds)
    asyncio.run(_main(named, Target(at_broker, at_proxy, at_coordinator, SetName(of_set), end)))
