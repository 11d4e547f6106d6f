"""Messages of any size: around every limit of frames and windows, to many times both, and beyond what a message may have."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX
from lockstep.transport.server import as_it_came
from tests.unit.lockstep.transport.ends import GRPCIO, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, numbered, path, service, unary, unary_stream

FRAME = 16_384
WINDOW = 65_535
PREFIX = 5
SIZES = (
    *(1, 2, FRAME - PREFIX - 1, FRAME - PREFIX, FRAME - PREFIX + 1, FRAME, FRAME + 1),
    *(WINDOW - PREFIX - 1, WINDOW - PREFIX, WINDOW - PREFIX + 1, WINDOW, WINDOW + 1),
    *(2**20, 2**22 - PREFIX, 2**22 + 1),
)
LARGE = 40 * 2**20
BEYOND = MESSAGE_BYTES_MAX + 1


@within(60)
async def test_messages_arrive_whole_whatever_their_size(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    echo = channel.unary_unary(path("Echo"))
    for size in SIZES:
        data = numbered(size, max(size, 4))[-size:]
        assert await echo(data) == data, size


@within(60)
async def test_messages_of_tens_of_megabytes_arrive_both_ways_at_once(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("Converse"))()

    async def write() -> None:
        for number in range(2):
            await call.write(numbered(number, LARGE))
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    for number in range(2):
        assert await call.read() == numbered(number, LARGE)
    assert await call.read() is grpc.aio.EOF
    await writing


@within(60)
async def test_small_messages_keep_their_order_both_ways_at_once(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("Converse"))()
    count = 3_000

    async def write() -> None:
        for number in range(count):
            await call.write(numbered(number, 4 + number % 40))
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    for number in range(count):
        assert await call.read() == numbered(number, 4 + number % 40)
    assert await call.read() is grpc.aio.EOF
    await writing


@within(60)
async def test_sizes_that_change_keep_their_order(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("Converse"))()
    sizes = [size for size in (4, 70_000, 5, 16_379, 4, 4, 300_000, 16_380) for _ in range(10)]

    async def write() -> None:
        for number, size in enumerate(sizes):
            await call.write(numbered(number, size))
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    for number, size in enumerate(sizes):
        assert await call.read() == numbered(number, size)
    assert await call.read() is grpc.aio.EOF
    await writing


@within(60)
async def test_a_request_beyond_the_limit_is_refused_and_others_go_on(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    echo = channel.unary_unary(path("Echo"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await echo(bytes(BEYOND))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await echo(b"small") == b"small"


@pytest.mark.parametrize("kind", ["unary", "unary_stream"])
@within(60)
async def test_an_answer_beyond_the_limit_is_refused_and_others_go_on(
    ends: Ends, probe: Probe, kind: str
) -> None:
    async def answer(_data: bytes, _context: Any) -> bytes:
        return bytes(BEYOND)

    async def write(_data: bytes, context: Any) -> None:
        await context.write(bytes(BEYOND))

    methods = service(Answer=unary(answer), Write=unary_stream(write))
    echoing = grpc.method_handlers_generic_handler("test.Other", {"Echo": unary(probe_echo)})
    channel = ends.open_channel((await ends.serve(methods, echoing)).address)
    if kind == "unary":
        answering = channel.unary_unary(path("Answer"))(b"")
    else:
        answering = channel.unary_stream(path("Write"))(b"").read()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await answering
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await channel.unary_unary("/test.Other/Echo")(b"small") == b"small"


async def probe_echo(data: bytes, _context: Any) -> bytes:
    return data


@within(60)
async def test_a_handler_that_wants_it_gets_a_big_message_as_it_came(ends: Ends) -> None:
    heard: list[bytes | memoryview] = []

    async def hear(data: bytes | memoryview, _context: Any) -> bytes:
        heard.append(data)
        return b""

    method: Any = grpc.unary_unary_rpc_method_handler(hear, request_deserializer=as_it_came)
    channel = ends.open_channel((await ends.serve(service(Hear=method))).address)
    for size in (10, LARGE):
        await channel.unary_unary(path("Hear"))(numbered(1, size))
    assert heard == [numbered(1, 10), numbered(1, LARGE)]
    assert ends.server == GRPCIO or isinstance(heard[1], memoryview)


@pytest.mark.parametrize("size", [10, LARGE])
@within(60)
async def test_a_request_in_pieces_is_one_message(our_ends: Ends, probe: Probe, size: int) -> None:
    channel = our_ends.open_channel((await our_ends.serve(probe.handlers())).address)
    pieces = b"head", numbered(1, size), b"end"
    assert await channel.unary_unary(path("Echo"))(pieces) == b"".join(pieces)
