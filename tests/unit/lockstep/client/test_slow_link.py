"""A message that needs longer on its way than a stream may be silent gets through, and whoever hangs is left all the same."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import lockstep
from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from lockstep.transport.keepalive import KEEPALIVE_SECONDS
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually

RATE = 400_000
"""Bytes a second, usually."""
LARGE = bytes(1_200_000)


class SlowLink:
    """A relay to a broker; both ways are as slow, and nothing passes while it hangs."""

    def __init__(self, address: str, rate: int = RATE) -> None:
        self._rate = rate
        self._port = int(address.rsplit(":", 1)[1])
        self._passes = asyncio.Event()
        self._passes.set()
        self.address = ""

    def hang(self) -> None:
        self._passes.clear()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SlowLink"]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        listening.bind(("127.0.0.1", 0))
        async with await asyncio.start_server(self._relay, sock=listening, limit=1 << 16):
            self.address = f"127.0.0.1:{listening.getsockname()[1]}"
            yield self

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 16)
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(8192):
                await self._passes.wait()
                await asyncio.sleep(len(data) / self._rate)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def test_a_large_message_gets_through_in_one_go(broker: FakeBroker) -> None:
    async with SlowLink(broker.address, RATE // 3).running() as link:
        broker.address = link.address
        async with await lockstep.connect(link.address) as client, client.session() as session:
            await session.publish("a", b"before")
            streams, begun = len(broker.streams), time.monotonic()
            await session.publish("a", LARGE)
            assert time.monotonic() - begun > 2 * KEEPALIVE_SECONDS, (
                "connections have their own idea of silence"
            )
            assert len(broker.streams) == streams


async def test_a_large_delivery_gets_through_in_one_go(broker: FakeBroker) -> None:
    async with SlowLink(broker.address).running() as link:
        broker.address = link.address
        async with (
            await lockstep.connect(link.address) as client,
            client.session() as session,
            await session.consume("a", credit=4) as consumer,
        ):
            await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
            large = sm.DeliveredMessage(QueuePosition(1), b"", LARGE, 0, 0, True)
            streams = len(broker.streams)
            name, _, context = broker.streams[-1]
            delivery = sm.Deliveries(Epoch(1), LogIndex(1), 1, "a", (large,))
            await broker._write(context, name, [delivery])
            assert (await anext(consumer)).body == LARGE
            assert len(broker.streams) == streams


async def test_who_hangs_in_the_middle_of_a_message_is_left(broker: FakeBroker) -> None:
    async with SlowLink(broker.address).running() as link:
        broker.address = link.address
        async with await lockstep.connect(link.address) as client, client.session() as session:
            await session.publish("a", b"before")
            port, _ = next(iter(session._sets.values()))
            publishing = asyncio.ensure_future(session.publish("a", LARGE))
            await asyncio.sleep(0.5)
            assert port.is_attached
            link.hang()
            begun = time.monotonic()
            await eventually(lambda: not port.is_attached)
            assert time.monotonic() - begun < 5
            publishing.cancel()
            await session.close()
