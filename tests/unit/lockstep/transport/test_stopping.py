"""A server that stops lets its calls end within a grace, begins no others, and then ends what is left."""

import asyncio
import struct

import grpc
import grpc.aio
import pytest

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, path

LEFT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""How a call ends that its server did not wait for."""


@within(30)
async def test_calls_that_run_end_well_within_the_grace_and_others_are_refused(
    ends: Ends, probe: Probe
) -> None:
    served = await ends.serve(probe.handlers())
    channel = ends.open_channel(served.address)
    call = channel.stream_unary(path("SumLater"))()
    await probe.begun.get()
    talk = channel.stream_stream(path("Converse"))()
    await talk.write(b"before")
    assert await talk.read() == b"before"
    stopping = asyncio.ensure_future(served.server.stop(20))
    await asyncio.sleep(0.3)
    assert not stopping.done()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Echo"))(b"new")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ends.open_channel(served.address).unary_unary(path("Echo"))(b"new")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    await talk.write(b"after")
    assert await talk.read() == b"after"
    await talk.done_writing()
    assert await talk.read() is grpc.aio.EOF
    await call.write(b"\x00\x00\x00\x00")
    await call.done_writing()
    probe.may_read.set()
    assert await call == COUNT.pack(1, 4)
    await stopping


@within(30)
async def test_calls_that_are_not_over_after_the_grace_are_ended(ends: Ends, probe: Probe) -> None:
    served = await ends.serve(probe.handlers())
    channel = ends.open_channel(served.address)
    call = channel.unary_unary(path("Wait"))(b"")
    stream = channel.stream_stream(path("WaitStreaming"))()
    await stream.write(b"here")
    assert await stream.read() == b"here"
    for _ in range(2):
        await probe.begun.get()
    await served.server.stop(0.3)
    assert await call.code() in LEFT
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await stream.read()
    assert await stream.code() in LEFT
    for _ in range(2):
        assert await probe.ended.get() == "cancelled"


@pytest.mark.parametrize("grace", [None, 0])
@within(30)
async def test_without_a_grace_calls_are_ended_at_once(ends: Ends, probe: Probe, grace: float | None) -> None:
    served = await ends.serve(probe.handlers())
    call = ends.open_channel(served.address).unary_unary(path("Wait"))(b"")
    await probe.begun.get()
    await served.server.stop(grace)
    assert await call.code() in LEFT
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_a_server_without_calls_does_not_wait_for_the_grace(ends: Ends, probe: Probe) -> None:
    served = await ends.serve(probe.handlers())
    channel = ends.open_channel(served.address)
    assert await channel.unary_unary(path("Echo"))(b"over") == b"over"
    async with asyncio.timeout(10):
        await served.server.stop(1_000)


@within(30)
async def test_whoever_waits_for_the_end_of_a_server_is_told(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    waiting = [asyncio.ensure_future(served.server.wait_for_termination()) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in waiting)
    await served.server.stop(None)
    await asyncio.gather(*waiting)
    await served.server.stop(None)
    await served.server.wait_for_termination()


@within(30)
async def test_a_second_stop_may_shorten_the_grace_of_the_first(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    call = our_ends.open_channel(served.address).unary_unary(path("Wait"))(b"")
    await probe.begun.get()
    patient = asyncio.ensure_future(served.server.stop(1_000))
    await asyncio.sleep(0.05)
    await served.server.stop(0)
    await patient
    assert await call.code() in LEFT


@within(30)
async def test_a_server_that_never_started_can_be_stopped(our_ends: Ends) -> None:
    server = our_ends.make_server()
    server.add_insecure_port("127.0.0.1:0")
    await server.stop(None)


@within(60)
async def test_calls_that_a_leaving_server_refuses_are_begun_again_with_the_next(
    our_ends: Ends, probe: Probe
) -> None:
    """Only what the server says it has not begun: each call runs once."""
    served = await our_ends.serve(probe.handlers())
    channel = our_ends.open_channel(served.address)
    is_over, answered = asyncio.Event(), 0

    async def ask(place: int) -> None:
        nonlocal answered
        while not is_over.is_set():
            data = b"%d of %d" % (answered, place)
            assert await channel.unary_unary(path("Echo"))(data, wait_for_ready=True, timeout=20) == data
            answered += 1

    asking = [asyncio.ensure_future(ask(place)) for place in range(8)]
    for _ in range(5):
        before = answered
        while answered < before + 20:
            await asyncio.sleep(0.001)
        await served.server.stop(5)
        served = await our_ends.serve(probe.handlers(), address=served.address)
    is_over.set()
    await asyncio.gather(*asking)


@within(30)
async def test_a_goodbye_never_tells_of_more_calls_than_the_one_before(our_ends: Ends, probe: Probe) -> None:
    """Calls that were refused in between have not been taken (RFC 9113, 6.8)."""
    served = await our_ends.serve(probe.handlers())
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    client.send(h.call(1, path("Wait"), b""))
    await probe.begun.get()
    stopping = asyncio.ensure_future(served.server.stop(0.5))
    while not any(one.kind == h.GOAWAY for one in client.frames):
        await client.receive()
    client.send(h.call(3, path("Echo"), b""))
    while not client.is_over:
        await client.receive()
    await stopping
    told = [struct.unpack_from(">I", one.payload)[0] for one in client.frames if one.kind == h.GOAWAY]
    assert len(told) == 2
    assert set(told) == {1}
    await client.close()
