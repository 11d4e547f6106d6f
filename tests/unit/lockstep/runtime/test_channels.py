"""Channels between processes: connected to whatever answers, however late."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.runtime.channels import make_server, open_channel

METHOD = "/a.Service/Echo"
LATE_SECONDS = 0.6
"""Longer than the longest pause between two attempts to connect."""


async def echo(data: bytes, _context: object) -> bytes:
    return data


async def served(port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = make_server()
    handler: Any = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", {"Echo": handler}),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


@pytest.fixture
async def slow_port() -> AsyncIterator[int]:
    """Of a server that lets each connection wait before it is served."""
    server, port = await served()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(LATE_SECONDS)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    link = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield link.sockets[0].getsockname()[1]
    link.close()
    await server.stop(None)


async def test_a_server_that_is_slow_to_answer_a_connection_is_reached(slow_port: int) -> None:
    async with open_channel(f"127.0.0.1:{slow_port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        assert await call(b"late", wait_for_ready=True, timeout=30) == b"late"


async def test_a_server_that_was_away_is_found_again_soon() -> None:
    server, port = await served()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        assert await call(b"before", wait_for_ready=True, timeout=30) == b"before"
        await server.stop(None)
        waiting = asyncio.ensure_future(call(b"after", wait_for_ready=True, timeout=30))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        server, _ = await served(port)
        async with asyncio.timeout(10):
            assert await waiting == b"after"
    await server.stop(None)
