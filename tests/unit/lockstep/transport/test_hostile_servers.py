"""Whatever a server sends: a client's call ends with an error, and its channel does without that server as soon as it can."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from random import Random

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import OURS, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path

OK, BAD_REQUEST, NOT_FOUND, SERVER_ERROR = b"\x88", b"\x8c", b"\x8d", b"\x8e"
"""`:status` 200, 400, 404 and 500 as RFC 7541, appendix A, has them."""
CONTENT_TYPE = h.field(b"content-type", b"application/grpc")
STATUS_OK = h.field(b"grpc-status", b"0")
END = h.END_HEADERS | h.END_STREAM
HEAD = h.frame(h.HEADERS, h.END_HEADERS, 1, OK + CONTENT_TYPE)
SOUND = (
    h.settings(),
    HEAD,
    h.frame(h.DATA, 0, 1, h.message(b"answer")),
    h.frame(h.HEADERS, END, 1, STATUS_OK),
)
CALL_SECONDS = 3.0
hostile_bytes = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@contextlib.asynccontextmanager
async def serving(answer: bytes, is_closing: bool = True) -> AsyncIterator[str]:
    """The address of a server that answers the first bytes of each call with these, whatever was asked."""
    writers: list[asyncio.StreamWriter] = []

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            received = b""
            writer.write(h.settings())
            while not any(one.kind == h.DATA for one in h.parse(received[len(h.PREFACE) :])[0]):
                data = await reader.read(2**16)
                if not data:
                    return
                received += data
            writer.write(answer)
            if is_closing:
                await writer.drain()
                writer.write_eof()
            while await reader.read(2**16):
                pass

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def ask(answer: bytes, is_closing: bool = False, timeout: float = CALL_SECONDS) -> grpc.StatusCode:
    """How a call ends that is answered so."""
    ends = Ends(OURS, OURS)
    async with serving(answer, is_closing) as address:
        call = ends.open_channel(address).unary_unary(path("Echo"))(b"question", timeout=timeout)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call
        code: grpc.StatusCode = await call.code()
        await ends.close()
    return code


@within(30)
async def test_an_answer_that_is_sound_is_one() -> None:
    assert await ask(b"".join(SOUND)) is grpc.StatusCode.OK


TOLD = {
    "404": ({"UNIMPLEMENTED"}, h.frame(h.HEADERS, END, 1, NOT_FOUND)),
    "400": ({"INTERNAL"}, h.frame(h.HEADERS, END, 1, BAD_REQUEST)),
    "500": ({"UNKNOWN"}, h.frame(h.HEADERS, END, 1, SERVER_ERROR)),
    "401": ({"UNAUTHENTICATED"}, h.frame(h.HEADERS, END, 1, h.field(b":status", b"401"))),
    "503": ({"UNAVAILABLE"}, h.frame(h.HEADERS, END, 1, h.field(b":status", b"503"))),
    "a status": (
        {"NOT_FOUND"},
        h.frame(h.HEADERS, END, 1, OK + CONTENT_TYPE + h.field(b"grpc-status", b"5")),
    ),
    "a status that is none": (
        {"UNKNOWN", "INVALID_ARGUMENT"},
        h.frame(h.HEADERS, END, 1, OK + CONTENT_TYPE + h.field(b"grpc-status", b"99")),
    ),
    "no status": ({"UNKNOWN", "INTERNAL"}, h.frame(h.HEADERS, END, 1, OK + CONTENT_TYPE)),
    "no trailers": ({"UNKNOWN", "INTERNAL"}, HEAD + h.frame(h.DATA, h.END_STREAM, 1, h.message(b"answer"))),
    "a part of a message more": (
        {"INTERNAL"},
        b"".join((*SOUND[:-1], h.frame(h.DATA, 0, 1, h.message(b"part", length=5)), SOUND[-1])),
    ),
    "refused": ({"UNAVAILABLE"}, HEAD + h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 7))),
    "cancelled": ({"CANCELLED"}, HEAD + h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8))),
    "calm": ({"RESOURCE_EXHAUSTED"}, HEAD + h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 11))),
    "insecure": ({"PERMISSION_DENIED"}, HEAD + h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 12))),
    "internal": ({"INTERNAL"}, HEAD + h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 2))),
    "goodbye": ({"UNAVAILABLE"}, h.frame(h.GOAWAY, 0, 0, struct.pack(">II", 0, 0))),
}


@pytest.mark.parametrize("name", TOLD)
@within(30)
async def test_ends_that_are_not_grpcs_have_the_codes_that_it_gives_them(name: str) -> None:
    """gRPC over HTTP/2, Errors; and "HTTP to gRPC status code mapping"."""
    codes, answer = TOLD[name]
    assert (await ask(answer)).name in codes


@within(30)
async def test_a_call_that_ends_well_without_an_answer_has_failed() -> None:
    code = await ask(HEAD + h.frame(h.HEADERS, END, 1, STATUS_OK))
    assert code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED}


@within(30)
async def test_a_goodbye_lets_the_calls_before_it_end() -> None:
    goodbye = h.frame(h.GOAWAY, 0, 0, struct.pack(">II", 1, 0))
    assert await ask(goodbye + b"".join(SOUND[1:])) is grpc.StatusCode.OK


_streams = st.sampled_from((0, 1, 1, 2, 3, 2**31 - 1))
_payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from((OK + CONTENT_TYPE, STATUS_OK, NOT_FOUND, h.message(b"x"), h.message(b"x", True))),
    st.builds(lambda value: struct.pack(">I", value), st.integers(0, 2**32 - 1)),
    st.builds(lambda length: h.message(b"x", length=length), st.integers(0, 2**32 - 1)),
)
_lengths = st.one_of(st.none(), st.none(), st.integers(0, 2**24 - 1))
_frames = st.builds(h.frame, st.integers(0, 10), st.integers(0, 255), _streams, _payloads, _lengths)


@pytest.mark.fuzz
@hostile_bytes
@given(st.one_of(st.binary(max_size=100).map(lambda noise: [noise]), st.lists(_frames, max_size=8)))
@within(30)
async def test_an_answer_of_noise_ends_the_call(frames: list[bytes]) -> None:
    await ask(b"".join(frames), is_closing=True, timeout=1)


@pytest.mark.fuzz
@hostile_bytes
@given(st.lists(_frames, max_size=2), st.integers(0, 2**32 - 1))
@within(30)
async def test_an_answer_that_is_changed_ends_the_call(more: list[bytes], seed: int) -> None:
    random, frames = Random(seed), [*SOUND]
    for one in more:
        frames.insert(random.randrange(len(frames) + 1), one)
    answer = bytearray(b"".join(frames))
    for _ in range(random.randrange(4)):
        answer[random.randrange(len(answer))] = random.randrange(256)
    await ask(bytes(answer), is_closing=True, timeout=1)


@within(30)
async def test_a_channel_outlives_a_server_that_talks_nonsense(our_ends: Ends, probe: Probe) -> None:
    async with serving(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        channel = our_ends.open_channel(address)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(path("Echo"))(b"", timeout=1)
    await our_ends.serve(probe.handlers(), address=address)
    assert await channel.unary_unary(path("Echo"))(b"found", wait_for_ready=True, timeout=20) == b"found"
