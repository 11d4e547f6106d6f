"""A server that says what its test says, frame by frame, to a channel of ours."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from lockstep.runtime import channels
from tests.unit.lockstep.transport import raw_http2 as h


class Peer:
    """The server's end of one connection; answers pings, while somebody receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames: list[h.Frame] = []
        self.is_over = False
        self._rest = b""
        self._preface_left = len(h.PREFACE)

    async def receive(self) -> None:
        """Waits for more."""
        data = b""
        with contextlib.suppress(OSError):
            data = await self.reader.read(2**18)
        self.is_over = not data
        cut = min(self._preface_left, len(data))
        self._preface_left -= cut
        frames, self._rest = h.parse(self._rest + data[cut:])
        self.frames += frames
        for one in frames:
            if one.kind == h.PING and not one.flags & h.ACK:
                self.send(h.frame(h.PING, h.ACK, 0, one.payload))

    async def calls(self, count: int) -> None:
        """Returns when so many have begun."""
        while sum(one.kind == h.HEADERS for one in self.frames) < count:
            assert not self.is_over, "the connection is over"
            await self.receive()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))


class RawServer:
    """Greets whoever connects."""

    def __init__(self) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []


@contextlib.asynccontextmanager
async def raw_server(greeting: bytes) -> AsyncIterator[tuple[RawServer, Any]]:
    """The server, and a channel to it."""
    made = RawServer()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.writers.append(writer)
        writer.write(greeting)
        made.peers.put_nowait(Peer(reader, writer))

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    channel = channels.open_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield made, channel
    finally:
        await channel.close()
        server.close()
        for writer in made.writers:
            writer.transport.abort()
        await asyncio.sleep(0)
