"""A channel is of an address, not of a connection: nobody there is an error at once, and somebody there later is found."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.runtime.ports import choose_ports
from tests.unit.lockstep.transport.ends import OURS, PAIRS, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path
from tests.unit.lockstep.transport.server_process import ServerProcess

REFUSED_SECONDS = 5.0
"""A call to nobody is told so within milliseconds; waiting is what this finds."""
FOUND_SECONDS = 5.0
"""Who listens again is found within a second, by a machine that has nothing else to do."""
CLIENTS = pytest.mark.parametrize("ends", [PAIRS[0], PAIRS[2]], indirect=True, ids=lambda pair: pair[0])


def address_of(kind: str, folder: Path) -> str:
    return f"unix:{folder}/socket" if kind == "path" else f"127.0.0.1:{choose_ports(1)[0]}"


async def ask_until_answered(channel: Any) -> bytes:
    """Calls that do not wait, again and again, as our own clients do."""
    async with asyncio.timeout(FOUND_SECONDS):
        while True:
            try:
                answer: bytes = await channel.unary_unary(path("Echo"))(b"found", timeout=1)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)


async def write_for_ever(call: Any) -> None:
    while True:
        await call.write(b"nobody hears this")


@pytest.mark.parametrize("kind", ["port", "path"])
@CLIENTS
@within(30)
async def test_where_nobody_listens_calls_are_unavailable_until_somebody_does(
    ends: Ends, probe: Probe, kind: str, tmp_path: Path
) -> None:
    address = address_of(kind, tmp_path)
    channel = ends.open_channel(address)
    for _ in range(3):
        async with asyncio.timeout(REFUSED_SECONDS):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(path("Echo"))(b"")
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert error.value.details()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_stream(path("Count"))(b"").read()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    upward = channel.stream_stream(path("Converse"))()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await write_for_ever(upward)
    assert await upward.code() is grpc.StatusCode.UNAVAILABLE
    await ends.serve(probe.handlers(), address=address)
    assert await ask_until_answered(channel) == b"found"


@within(30)
async def test_a_host_that_has_no_address_is_unavailable(our_ends: Ends) -> None:
    channel = our_ends.open_channel("nobody.invalid:1")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Echo"))(b"", timeout=20)
    assert error.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


@CLIENTS
@within(30)
async def test_a_channel_is_ready_when_somebody_listens(ends: Ends, probe: Probe) -> None:
    address = f"127.0.0.1:{choose_ports(1)[0]}"
    channel = ends.open_channel(address)
    ready = asyncio.ensure_future(channel.channel_ready())
    waiting = channel.unary_unary(path("Echo"))(b"waited", wait_for_ready=True, timeout=20)
    streaming = channel.stream_stream(path("Converse"))(wait_for_ready=True)
    await asyncio.sleep(0.3)
    assert not ready.done() and not waiting.done()
    await ends.serve(probe.handlers(), address=address)
    async with asyncio.timeout(FOUND_SECONDS):
        await ready
        assert await waiting == b"waited"
        await streaming.write(b"too")
        assert await streaming.read() == b"too"
    streaming.cancel()


@within(30)
async def test_who_waits_for_a_server_waits_no_longer_than_its_deadline(our_ends: Ends) -> None:
    channel = our_ends.open_channel(f"127.0.0.1:{choose_ports(1)[0]}")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Echo"))(b"", wait_for_ready=True, timeout=0.3)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    ready = asyncio.ensure_future(channel.channel_ready())
    await asyncio.sleep(0.1)
    ready.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ready


@pytest.mark.parametrize("kind", ["port", "path"])
@within(40)
async def test_a_server_that_was_killed_is_found_again(our_ends: Ends, kind: str, tmp_path: Path) -> None:
    address = address_of(kind, tmp_path)
    channel = our_ends.open_channel(address)
    for _ in range(2):
        with ServerProcess(OURS, address) as process:
            assert await ask_until_answered(channel) == b"found"
            process.kill()


@within(30)
async def test_a_server_that_was_stopped_is_found_again_and_again(ends: Ends, probe: Probe) -> None:
    served = await ends.serve(probe.handlers())
    channel = ends.open_channel(served.address)
    for _ in range(5):
        assert await ask_until_answered(channel) == b"found"
        await served.server.stop(None)
        served = await ends.serve(probe.handlers(), address=served.address)
    assert await ask_until_answered(channel) == b"found"


@within(30)
async def test_who_waits_for_a_connection_waits_no_longer_than_the_channel_is_open(our_ends: Ends) -> None:
    channel = our_ends.open_channel(f"127.0.0.1:{choose_ports(1)[0]}")
    ready = asyncio.ensure_future(channel.channel_ready())
    await asyncio.sleep(0.1)
    await channel.close()
    with pytest.raises(grpc.aio.UsageError):
        await ready


@within(30)
async def test_a_connection_that_has_had_all_its_calls_is_followed_by_another_one(
    our_ends: Ends, probe: Probe
) -> None:
    channel = our_ends.open_channel((await our_ends.serve(probe.handlers())).address)
    echo = channel.unary_unary(path("Echo"))
    assert await echo(b"first") == b"first"
    channel._connection._h2.highest_outbound_stream_id = 2**31 - 1  # As behind 2**30 calls.
    assert await asyncio.gather(*(echo(b"%d" % number) for number in range(3))) == [b"0", b"1", b"2"]
    assert len(channel._connections) == 1
