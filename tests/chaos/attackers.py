"""Strangers at the ports of a cluster, each in a process of its own: floods of names, subscriptions, selectors, calls and frames.

`python -m tests.chaos.attackers NAME BROKER PROXY SECONDS`: attacks for about so long, and ends without a word. Whatever it is
told is of no interest: refusals, too, are answers.
"""

import asyncio
import contextlib
import logging
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import lockstep
from lockstep.wire.v1 import cluster_pb2
from tests.amqp import codec
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender, credit
from tests.unit.lockstep.transport import raw_http2 as h

LINKS = 400
"""On one connection: below what it may have."""
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
    until: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def port(self) -> int:
        return int(self.broker.rpartition(":")[2])


# --- AMQP ---


async def new_names(target: Target) -> None:
    """Senders to queues that are not there: 1,500 at once, again and again."""
    number = 0
    while not target.is_over:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                client = await stack.enter_async_context(await RawClient.begun(target.proxy))
                number += 1
                names = (f"flood-{number}-{handle}" for handle in range(375))
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


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        *(new_names, durable_subscriptions, costly_consumer, costly_bindings),
        *(idle_calls, untaken_answers, long_fields, resets, state_hashes, pings),
    )
}


async def _main(name: str, broker: str, proxy: str, seconds: float) -> None:
    target = Target(broker, proxy, time.monotonic() + seconds)
    while not target.is_over:
        with contextlib.suppress(Exception):  # It may have been thrown out: it comes again.
            async with asyncio.timeout(target.until - time.monotonic()):
                await ATTACKS[name](target)
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # Of each write behind the end of a connection it says something.
    _, named, broker_address, proxy_address, for_seconds = sys.argv
    asyncio.run(_main(named, broker_address, proxy_address, float(for_seconds)))
