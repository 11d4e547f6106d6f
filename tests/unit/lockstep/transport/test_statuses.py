"""How a call ended, as its caller sees it: code, details and trailing metadata, from handlers and from the server itself."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.unit.lockstep.transport.ends import GRPCIO, OURS, Ends, within
from tests.unit.lockstep.transport.probe_service import (
    Probe,
    path,
    service,
    stream_stream,
    stream_unary,
    unary,
    unary_stream,
)

DETAILS = "größer\tals 100 %\r\n\x01\x1f\x7f „€“ 漢字 \U0001f600 %41 ~"
METADATA = (
    ("lockstep-code", "17"),
    ("lockstep-details-bin", bytes(range(256))),
    ("empty-bin", b""),
    ("one-bin", b"\x00"),
    ("two-bin", b"\xff\xfe"),
    ("many", "first"),
    ("many", "second"),
)
ERRORS = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


async def fail_unary(_data: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, DETAILS, METADATA)
    return b""


async def fail_stream(_requests: object, context: Any) -> None:
    await context.write(b"before")
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, DETAILS, METADATA)


async def fail_yielding(_requests: object, context: Any) -> AsyncIterator[bytes]:
    yield b"before"
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, DETAILS, METADATA)


FAILING = service(
    UnaryUnary=unary(fail_unary),
    UnaryStream=unary_stream(fail_stream),
    UnaryYielding=unary_stream(fail_yielding),
    StreamUnary=stream_unary(fail_unary),
    StreamStream=stream_stream(fail_stream),
    StreamYielding=stream_stream(fail_yielding),
)


def is_as_aborted(error: grpc.aio.AioRpcError) -> bool:
    trailing = tuple((key, value) for key, value in error.trailing_metadata() or ())
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == DETAILS
    assert [pair for pair in trailing if pair in METADATA] == list(METADATA)
    return True


@within(30)
async def test_an_abort_reaches_the_caller_of_an_answer_whole(ends: Ends) -> None:
    channel = ends.open_channel((await ends.serve(FAILING)).address)
    call = channel.unary_unary(path("UnaryUnary"))(b"")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert is_as_aborted(error.value)
    assert call.done() and await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await call.details() == DETAILS
    assert dict(await call.trailing_metadata())["lockstep-code"] == "17"
    upward = channel.stream_unary(path("StreamUnary"))()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await upward
    assert is_as_aborted(error.value)


@pytest.mark.parametrize("method", ["UnaryStream", "UnaryYielding", "StreamStream", "StreamYielding"])
@within(30)
async def test_an_abort_comes_after_what_was_written_before_it(ends: Ends, method: str) -> None:
    channel = ends.open_channel((await ends.serve(FAILING)).address)
    if method.startswith("Unary"):
        call = channel.unary_stream(path(method))(b"")
    else:
        call = channel.stream_stream(path(method))()
    assert await call.read() == b"before"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert is_as_aborted(error.value)
    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await call.details() == DETAILS
    assert dict(await call.trailing_metadata())["lockstep-code"] == "17"


@within(30)
async def test_every_code_is_told_apart(ends: Ends) -> None:
    async def fail(data: bytes, context: Any) -> bytes:
        await context.abort(ERRORS[int(data)], f"by number {int(data)}")
        return b""

    call = ends.open_channel((await ends.serve(service(Fail=unary(fail)))).address).unary_unary(path("Fail"))
    for number, code in enumerate(ERRORS):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"%d" % number)
        assert (error.value.code(), error.value.details()) == (code, f"by number {number}")


@pytest.mark.parametrize("details", ["", " ", "%", "%%41", "a" * 3_000, "\x00", "é" * 500, " kept "])
@within(30)
async def test_details_are_told_to_the_letter(ends: Ends, details: str) -> None:
    async def fail(_data: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.ABORTED, details)
        return b""

    channel = ends.open_channel((await ends.serve(service(Fail=unary(fail)))).address)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Fail"))(b"")
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.ABORTED, details)


@within(30)
async def test_what_nobody_serves_is_unimplemented(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    for method in (path("Nothing"), "/test.Nobody/Echo", "/", "/test.Probe", "/test.Probe/Echo/More"):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(method)(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
        call = channel.stream_stream(method)()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
    assert await channel.unary_unary(path("Echo"))(b"still") == b"still"


@within(30)
async def test_a_handler_that_raises_ends_its_call_alone(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_data: bytes, _context: Any) -> bytes:
        raise ValueError("a bug")

    async def fail_later(_data: bytes, context: Any) -> None:
        await context.write(b"before")
        raise ValueError("a bug")

    async def echo(data: bytes, _context: Any) -> bytes:
        return data

    methods = service(Fail=unary(fail), FailLater=unary_stream(fail_later), Echo=unary(echo))
    channel = ends.open_channel((await ends.serve(methods)).address)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Fail"))(b"")
    assert error.value.code() is grpc.StatusCode.UNKNOWN
    call = channel.unary_stream(path("FailLater"))(b"")
    assert await call.read() == b"before"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.UNKNOWN
    assert await channel.unary_unary(path("Echo"))(b"still") == b"still"
    assert "a bug" in caplog.text


@within(30)
async def test_several_services_are_served_side_by_side(ends: Ends) -> None:
    def answering(name: str) -> grpc.GenericRpcHandler:
        async def answer(_data: bytes, _context: Any) -> bytes:
            return name.encode()

        return grpc.method_handlers_generic_handler(name, {"Name": unary(answer)})

    names = ("a.One", "a.Two", "b.One")
    served = await ends.serve(*(answering(name) for name in names))
    channel = ends.open_channel(served.address)
    for name, _ in itertools.product(names, range(2)):
        assert await channel.unary_unary(f"/{name}/Name")(b"") == name.encode()


@pytest.mark.parametrize("size", [4_000, 17_000, 100_000])
@within(30)
async def test_long_details_end_their_call_only(our_ends: Ends, probe: Probe, size: int) -> None:
    async def refuse(_data: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "ö" * size)

    served = await our_ends.serve(
        service(Refuse=unary(refuse)),
        grpc.method_handlers_generic_handler("test.Other", {"Converse": stream_stream(probe_converse)}),
    )
    channel = our_ends.open_channel(served.address)
    other = channel.stream_stream("/test.Other/Converse")()
    await other.write(b"before")
    assert await other.read() == b"before"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path("Refuse"))(b"")
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.value.details() or "").startswith("ö" * 4_000)
    await other.write(b"behind")
    assert await other.read() == b"behind"
    other.cancel()


async def probe_converse(_requests: object, context: Any) -> None:
    while (data := await context.read()) is not grpc.aio.EOF:
        await context.write(data)


@within(30)
async def test_long_metadata_reach_a_server(probe: Probe) -> None:
    ends = Ends(GRPCIO, OURS)
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    assert await channel.unary_unary(path("Echo"))(b"a", metadata=(("long", "x" * 20_000),)) == b"a"
    await ends.close()


@within(30)
async def test_details_that_are_no_text_end_their_call_nevertheless(our_ends: Ends) -> None:
    """As names of files have them, which may be any bytes."""

    async def fail(_data: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no file \udcff")

    served = await our_ends.serve(service(Fail=unary(fail)))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await our_ends.open_channel(served.address).unary_unary(path("Fail"))(b"", timeout=20)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.NOT_FOUND, "no file ?")


@within(30)
async def test_trailing_metadata_that_cannot_be_said_end_their_call_nevertheless(our_ends: Ends) -> None:
    async def fail(_data: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no file", (("name", "\udcff"),))

    served = await our_ends.serve(service(Fail=unary(fail)))
    call = our_ends.open_channel(served.address).unary_unary(path("Fail"))(b"", timeout=20)
    assert await call.code() is grpc.StatusCode.UNKNOWN
