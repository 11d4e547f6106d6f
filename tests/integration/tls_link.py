"""What stands before a server that speaks no TLS: takes connections by TLS, and forwards what is in them."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence


@contextlib.asynccontextmanager
async def tls_links(servers: Sequence[str], context: ssl.SSLContext) -> AsyncIterator[list[str]]:
    """One link before each of `servers` (host:port) inside the block: their addresses, in this order."""
    # What gRPC asks for, and goes without no longer.
    context.set_alpn_protocols(["h2"])
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for server in servers:
            link = await asyncio.start_server(_Link(server).accept, "127.0.0.1", 0, ssl=context)
            stack.callback(link.close)
            addresses.append(f"127.0.0.1:{link.sockets[0].getsockname()[1]}")
        yield addresses


class _Link:
    """Lives as long as its connections."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._target = (host, int(port))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            # At once: the event loop may end before a farewell is through.
            writer.transport.abort()
            far_writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()
