"""A peer that dies, or hangs, ends every call with it, and nothing waits for ever."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import OURS, PAIRS, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path, service, unary_stream
from tests.unit.lockstep.transport.server_process import ServerProcess

KEEPALIVE_SECONDS = 12.0
"""Far above the 2 s until a ping and the 2 s that its answer may take, far below what a kernel waits."""
LOST = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)


@pytest.fixture
def server_process(ends: Ends) -> Iterator[ServerProcess]:
    with ServerProcess(ends.server) as process:
        yield process


@pytest.fixture
async def client_process(ends: Ends, probe: Probe) -> Any:
    """Has a stream open, whose handler waits."""
    served = await ends.serve(probe.handlers())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.lockstep.transport.client_process", ends.client, served.address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def open_calls(channel: Any) -> list[asyncio.Task[Any]]:
    """One that waits for an answer, one that reads, and one that is held back writing."""
    reading = channel.stream_stream(path("WaitStreaming"))()
    writing = channel.stream_stream(path("WaitStreaming"))()
    for call in (reading, writing):
        await call.write(b"here")
        assert await call.read() == b"here"

    async def write() -> None:
        while True:
            await writing.write(bytes(1_000_000))

    async def answer() -> bytes:
        data: bytes = await channel.unary_unary(path("Wait"))(b"")
        return data

    waiting = [asyncio.ensure_future(one) for one in (reading.read(), write(), answer())]
    await asyncio.sleep(0.3)
    assert not any(one.done() for one in waiting)
    return waiting


@within(40)
async def test_a_server_that_dies_makes_every_open_call_unavailable(
    ends: Ends, server_process: ServerProcess
) -> None:
    channel = ends.open_channel(server_process.address)
    reading, writing, answering = await open_calls(channel)
    server_process.kill()
    for call in (reading, answering):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(LOST):
        await writing
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Echo"))(b"later")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


@within(40)
async def test_a_server_that_hangs_makes_every_open_call_unavailable(our_ends: Ends) -> None:
    with ServerProcess(OURS) as process:
        channel = our_ends.open_channel(process.address)
        reading, writing, answering = await open_calls(channel)
        process.halt()
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            for call in (reading, answering):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(LOST):
                await writing


@within(40)
async def test_a_client_that_dies_cancels_its_handlers(client_process: Any, probe: Probe) -> None:
    assert await probe.begun.get() == "WaitStreaming"
    assert probe.ended.empty()
    client_process.kill()
    assert await probe.ended.get() == "cancelled"


@pytest.mark.parametrize("ends", PAIRS[:1], indirect=True, ids=["ours-ours"])
@within(40)
async def test_a_client_that_hangs_cancels_its_handlers(
    ends: Ends, client_process: Any, probe: Probe
) -> None:
    assert await probe.begun.get() == "WaitStreaming"
    client_process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(KEEPALIVE_SECONDS):
        assert await probe.ended.get() == "cancelled"


@within(40)
async def test_a_connection_that_nobody_uses_is_kept(our_ends: Ends, probe: Probe) -> None:
    """Pings go both ways more often than gRPC's servers allow by themselves, and nobody takes offence."""
    channel = our_ends.open_channel((await our_ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("Converse"))()
    await call.write(b"before")
    assert await call.read() == b"before"
    await asyncio.sleep(5)
    await call.write(b"after")
    assert await call.read() == b"after"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@within(30)
async def test_of_a_call_whose_connection_was_lost_nothing_has_moved(our_ends: Ends) -> None:
    moved: asyncio.Queue[bool] = asyncio.Queue()

    async def wait(_data: bytes, context: Any) -> None:
        await context.write(b"begun")
        try:
            await asyncio.Event().wait()
        finally:
            moved.put_nowait(context.has_moved())

    served = await our_ends.serve(service(Wait=unary_stream(wait)))
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    client.send(h.call(1, path("Wait"), b""))
    while not client.data_of(1):
        await client.receive()
    await client.close()
    assert not await moved.get()
