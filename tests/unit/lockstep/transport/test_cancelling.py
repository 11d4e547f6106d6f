"""A call that its caller gives up, by cancelling or by a deadline, is given up by its handler; and what a client still does to a
call that its server has ended."""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.unit.lockstep.transport.ends import OURS, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path, service, stream_stream, unary_stream

ENDED_ERRORS = (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError)
"""What a write raises after its call has ended."""


@within(30)
async def test_a_deadline_ends_the_call_at_both_ends(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.unary_unary(path("Wait"))(b"", timeout=0.3)
    assert await probe.begun.get() == "Wait"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await probe.ended.get() == "cancelled"
    assert await channel.unary_unary(path("Echo"))(b"next", timeout=30) == b"next"


@within(30)
async def test_a_deadline_ends_a_stream_at_both_ends(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("WaitStreaming"))(timeout=0.5)
    await call.write(b"first")
    assert await call.read() == b"first"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await probe.ended.get() == "cancelled"


@pytest.mark.parametrize("timeout", [0.0, -1.0])
@within(30)
async def test_a_deadline_that_has_passed_ends_the_call_at_once(
    ends: Ends, probe: Probe, timeout: float
) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    await channel.channel_ready()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Wait"))(b"", timeout=timeout)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", [1e-6, 20, 1e5, 1e9])
@within(30)
async def test_deadlines_near_and_far_are_understood(ends: Ends, probe: Probe, timeout: float) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    await channel.channel_ready()
    if timeout < 1:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(path("Wait"))(b"", timeout=timeout)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        assert await channel.unary_unary(path("Echo"))(b"soon", timeout=timeout) == b"soon"


@within(30)
async def test_cancelling_a_call_cancels_its_handler(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.unary_unary(path("Wait"))(b"")
    await probe.begun.get()
    assert not call.done()
    assert call.cancel()
    assert call.done() and call.cancelled()
    assert not call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_cancelling_who_awaits_a_call_cancels_its_handler(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)

    async def ask() -> None:
        await channel.unary_unary(path("Wait"))(b"")

    asking = asyncio.ensure_future(ask())
    await probe.begun.get()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_cancelling_a_stream_cancels_its_handler_and_who_reads(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("WaitStreaming"))()
    await call.write(b"first")
    assert await call.read() == b"first"
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert await probe.ended.get() == "cancelled"
    with pytest.raises((asyncio.CancelledError, *ENDED_ERRORS)):
        await call.write(b"late")


@within(30)
async def test_cancelling_who_reads_a_stream_cancels_the_call(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("WaitStreaming"))()
    await call.write(b"first")
    assert await call.read() == b"first"
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_a_message_that_a_client_gives_up_midway_ends_the_call(ends: Ends, probe: Probe) -> None:
    """What came behind a part of it would be taken for its rest."""
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_unary(path("SumLater"))()
    await call.write(b"first")
    assert await probe.begun.get() == "SumLater"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            for _ in range(20):
                await call.write(bytes(5 * 2**20))
    with pytest.raises((*ENDED_ERRORS, asyncio.CancelledError)):
        await call.write(b"behind it")
    assert call.done()


@pytest.mark.parametrize("rest", [b"", b"behind it"])
@within(30)
async def test_a_message_that_a_handler_gives_up_midway_ends_the_call(ends: Ends, rest: bytes) -> None:
    given_up = asyncio.Event()

    async def write(_data: bytes, context: Any) -> None:
        await context.write(bytes(3 * 2**20))
        try:
            async with asyncio.timeout(0.3):
                for _ in range(20):
                    await context.write(bytes(5 * 2**20))
        except TimeoutError:
            pass
        finally:
            given_up.set()
        if rest:
            await context.write(rest)

    channel = ends.open_channel((await ends.serve(service(Write=unary_stream(write)))).address)
    call = channel.unary_stream(path("Write"))(b"")
    await given_up.wait()
    has_ended: Any = (
        pytest.raises if ends.server == OURS else contextlib.suppress
    )  # grpcio's still sends it whole.
    with has_ended(grpc.aio.AioRpcError):
        while (message := await call.read()) is not grpc.aio.EOF:
            assert len(message) in (3 * 2**20, 5 * 2**20)


@within(30)
async def test_a_handler_that_waits_for_a_message_or_for_room_is_ended(ends: Ends) -> None:
    """grpcio's tells one that waits for a message that there is none."""
    ended: asyncio.Queue[int] = asyncio.Queue()

    async def handle(_requests: object, context: Any) -> None:
        size = int(await context.read())
        try:
            while size:
                await context.write(bytes(size))
            await context.read()
        finally:
            ended.put_nowait(size)

    channel = ends.open_channel((await ends.serve(service(Handle=stream_stream(handle)))).address)
    for size in (0, 1_000_000):
        call = channel.stream_stream(path("Handle"))()
        await call.write(b"%d" % size)
        await asyncio.sleep(0.2)
        assert ended.empty()
        call.cancel()
        assert await ended.get() == size


@within(30)
async def test_a_handler_may_end_while_its_client_writes(ends: Ends) -> None:
    async def handle(_requests: object, context: Any) -> None:
        await context.write(await context.read())

    channel = ends.open_channel((await ends.serve(service(Handle=stream_stream(handle)))).address)
    call = channel.stream_stream(path("Handle"))()

    async def write() -> None:
        while True:
            await call.write(bytes(100_000))

    writing = asyncio.ensure_future(write())
    assert await call.read() == bytes(100_000)
    if ends.client == OURS:
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    else:  # Of grpcio's, a write that comes too late makes it INTERNAL.
        assert await call.code() in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}
    with pytest.raises(ENDED_ERRORS):
        await writing


@within(30)
async def test_a_handler_may_abort_while_its_client_is_held_back(ends: Ends) -> None:
    async def handle(_requests: object, context: Any) -> None:
        await asyncio.sleep(0.3)
        await context.abort(grpc.StatusCode.ABORTED, "enough")

    channel = ends.open_channel((await ends.serve(service(Handle=stream_stream(handle)))).address)
    call = channel.stream_stream(path("Handle"))()

    async def write() -> None:
        while True:
            await call.write(bytes(1_000_000))

    writing = asyncio.ensure_future(write())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    if ends.client == OURS:
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.ABORTED, "enough")
    with pytest.raises(ENDED_ERRORS):
        await writing


@within(30)
async def test_calls_that_are_given_up_at_any_moment_leave_nothing_behind(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    await channel.channel_ready()
    for turns in range(40):
        call = channel.unary_unary(path("Wait"))(b"")
        stream = channel.stream_stream(path("Converse"))()
        for _ in range(turns % 8):
            await asyncio.sleep(0)
        call.cancel()
        stream.cancel()
    assert await channel.unary_unary(path("Echo"))(b"next") == b"next"
    while probe.ended.qsize() < probe.begun.qsize():
        await asyncio.sleep(0.01)
