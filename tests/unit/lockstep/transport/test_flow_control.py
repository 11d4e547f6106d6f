"""Who does not read holds back who writes to it, and nobody else."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import (
    COUNT,
    Probe,
    numbered,
    path,
    service,
    stream_stream,
    unary,
    unary_stream,
)

MESSAGE_BYTES = 256 * 1024
HELD_BYTES_MAX = 64 * 2**20
"""That one stream nobody reads may have on its way, in buffers and windows of both ends."""
STEADY = (("grpc.http2.bdp_probe", 0),)
"""Of grpcio's ends: otherwise these make their windows as wide as they take the link for, up to more than `HELD_BYTES_MAX`."""
STILL_SECONDS = 0.3
"""A writer that gets nothing more away for so long is held back."""


class Count:
    """How many messages a writer got away."""

    def __init__(self) -> None:
        self.written = 0

    async def settle(self) -> int:
        """Returns the number when it grows no more."""
        before = -1
        while before != self.written:
            before = self.written
            assert before * MESSAGE_BYTES <= HELD_BYTES_MAX, "nothing holds the writer back"
            await asyncio.sleep(STILL_SECONDS)
        return before


@within(60)
async def test_a_client_that_nobody_reads_is_held_back_and_others_go_on(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers(), options=STEADY)).address)
    call, count = channel.stream_stream(path("WaitStreaming"))(), Count()

    async def write() -> None:
        for number in range(2 * HELD_BYTES_MAX // MESSAGE_BYTES):
            await call.write(numbered(number, MESSAGE_BYTES))
            count.written += 1

    writing = asyncio.ensure_future(write())
    assert await probe.begun.get() == "WaitStreaming"
    await count.settle()
    assert await channel.unary_unary(path("Echo"))(bytes(2**21)) == bytes(2**21)
    other = channel.stream_stream(path("Converse"))()
    for number in range(20):
        await other.write(numbered(number, MESSAGE_BYTES))
        assert await other.read() == numbered(number, MESSAGE_BYTES)
    other.cancel()
    assert not writing.done()
    call.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await writing


@within(60)
async def test_a_handler_that_nobody_reads_is_held_back_and_others_go_on(ends: Ends) -> None:
    counts = [Count() for _ in range(4)]
    unread = iter(counts)

    async def write(_data: bytes, context: Any) -> None:
        count = next(unread)
        for number in range(2 * HELD_BYTES_MAX // MESSAGE_BYTES):
            await context.write(numbered(number, MESSAGE_BYTES))
            count.written += 1

    async def converse(_requests: object, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    served = await ends.serve(service(Write=unary_stream(write), Converse=stream_stream(converse)))
    channel = ends.open_channel(served.address, STEADY)
    calls = [channel.unary_stream(path("Write"))(b"") for _ in counts]
    await asyncio.gather(*(count.settle() for count in counts))
    other = channel.stream_stream(path("Converse"))()
    for number in range(20):
        await other.write(numbered(number, MESSAGE_BYTES))
        assert await other.read() == numbered(number, MESSAGE_BYTES)
    await other.done_writing()
    assert await other.read() is grpc.aio.EOF
    for call in calls:
        call.cancel()


@within(60)
async def test_a_client_that_was_held_back_goes_on_in_order_when_it_is_read(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers(), options=STEADY)).address)
    call, count, messages = channel.stream_unary(path("SumLater"))(), Count(), 400

    async def write() -> None:
        for number in range(messages):
            await call.write(numbered(number, MESSAGE_BYTES))
            count.written += 1
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    await probe.begun.get()
    assert await count.settle() < messages
    probe.may_read.set()
    await writing
    assert await call == COUNT.pack(messages, messages * MESSAGE_BYTES)


@pytest.mark.parametrize("first", [MESSAGE_BYTES, 3 * 2**19, 2**21 - 5, 2**21, 3 * 2**20])
@within(60)
async def test_a_message_beyond_the_window_goes_on_behind_one_that_is_read_late(
    ends: Ends, probe: Probe, first: int
) -> None:
    """What came of it while the one before waited is room that its own end needs."""
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call, sizes = channel.stream_unary(path("SumLater"))(), (first, 20 * 2**20, 10)

    async def write() -> None:
        for number, size in enumerate(sizes):
            await call.write(numbered(number, size))
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    assert await probe.begun.get() == "SumLater"
    await asyncio.sleep(STILL_SECONDS)
    probe.may_read.set()
    await writing
    assert await call == COUNT.pack(len(sizes), sum(sizes))


@within(60)
async def test_a_slow_reader_gets_everything_in_order(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.unary_stream(path("Count"))(COUNT.pack(200, MESSAGE_BYTES))
    for number in range(200):
        if number % 20 == 0:
            await asyncio.sleep(0.05)
        assert await call.read() == numbered(number, MESSAGE_BYTES)
    assert await call.read() is grpc.aio.EOF


@within(60)
async def test_others_have_their_turn_while_there_is_room_for_everything(ends: Ends) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def write(_data: bytes, context: Any) -> None:
        other = asyncio.ensure_future(others())
        for _ in range(1_000):
            await context.write(b"small")
        other.cancel()

    channel = ends.open_channel((await ends.serve(service(Write=unary_stream(write)))).address)
    call = channel.unary_stream(path("Write"))(b"")
    answers = [answer async for answer in call]
    assert len(answers) == 1_000
    assert turns >= 50


@within(60)
async def test_what_was_not_read_of_a_call_is_no_loss_to_later_ones(ends: Ends, probe: Probe) -> None:
    """Windows of the connection are given back for what nobody will ever read."""
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    for _ in range(60):
        call = channel.unary_stream(path("Count"))(COUNT.pack(1_000, MESSAGE_BYTES))
        assert await call.read() == numbered(0, MESSAGE_BYTES)
        call.cancel()
    for _ in range(60):
        upward = channel.stream_stream(path("WaitStreaming"))()
        await upward.write(bytes(MESSAGE_BYTES))
        await upward.write(bytes(10))
        assert await upward.read() == bytes(MESSAGE_BYTES)
        upward.cancel()
    assert await channel.unary_unary(path("Echo"))(bytes(2**22)) == bytes(2**22)


@within(60)
async def test_many_calls_at_once_each_get_their_own_answer(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    echo = channel.unary_unary(path("Echo"))

    async def ask(number: int) -> bool:
        data = numbered(number, 4 + 997 * (number % 50))
        answer: bytes = await echo(data)
        return answer == data

    assert all(await asyncio.gather(*(ask(number) for number in range(400))))


@within(60)
async def test_calls_beyond_what_the_server_takes_at_once_wait_their_turn(ends: Ends, probe: Probe) -> None:
    # Without the other option, grpcio's counts calls a little longer than it may, and refuses some.
    options = (("grpc.max_concurrent_streams", 3), ("grpc.http.overload_protection", 0))
    channel = ends.open_channel((await ends.serve(probe.handlers(), options=options)).address)
    echo = channel.unary_unary(path("Echo"))
    assert await echo(b"first") == b"first"  # Until then its client does not know how many.
    answers = await asyncio.gather(*(echo(numbered(number, 100)) for number in range(50)))
    assert answers == [numbered(number, 100) for number in range(50)]


@pytest.mark.parametrize("window", [1, 1_000, 2**24])
@within(60)
async def test_windows_of_any_size_are_kept_to(ends: Ends, probe: Probe, window: int) -> None:
    options = (("grpc.http2.lookahead_bytes", window), ("grpc.http2.bdp_probe", 0))
    served = await ends.serve(probe.handlers(), options=options)
    echo = ends.open_channel(served.address, options).unary_unary(path("Echo"))
    for size in (0, 1, 70_000, 3 * 2**20):
        assert await echo(bytes(size)) == bytes(size)


@within(60)
async def test_a_small_message_does_not_wait_for_all_of_a_big_one(our_ends: Ends) -> None:
    big_bytes = 100 * 2**20

    async def write_big(_data: bytes, context: Any) -> None:
        await context.write(bytes(big_bytes))

    async def write_small(_data: bytes, context: Any) -> None:
        await asyncio.sleep(STILL_SECONDS)
        await context.write(b"small")

    served = await our_ends.serve(service(Big=unary_stream(write_big), Small=unary_stream(write_small)))
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    client.send(h.call(1, path("Small"), b""), h.call(3, path("Big"), b""))
    await asyncio.sleep(2 * STILL_SECONDS)
    assert await client.end_of(1)
    assert len(client.data_of(3)) < big_bytes / 2
    await client.close()


@within(60)
async def test_calls_are_taken_while_an_answer_is_on_its_way_however_big_it_is(ends: Ends) -> None:
    async def write_big(_data: bytes, context: Any) -> None:
        await context.write(bytes(100 * 2**20))

    async def echo(data: bytes, _context: Any) -> bytes:
        return data

    served = await ends.serve(service(Big=unary_stream(write_big), Echo=unary(echo)))
    channel = ends.open_channel(served.address)
    call = channel.unary_stream(path("Big"))(b"")
    reading = asyncio.ensure_future(call.read())
    asked = 0
    while not reading.done():
        assert await channel.unary_unary(path("Echo"))(b"x") == b"x"
        asked += 1
    assert len(await reading) == 100 * 2**20
    assert asked > 1
