"""What servers may do that ours does not: allow calls later, go away in the middle of them, hang while their kernel does not."""

import asyncio
import contextlib
import struct

import grpc
import pytest

from lockstep.transport.keepalive import KEEPALIVE_SECONDS
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import within
from tests.unit.lockstep.transport.probe_service import path
from tests.unit.lockstep.transport.raw_server import raw_server

CALLS_MAX = 3
"""The setting: calls at a time."""
ANSWER = (
    h.frame(
        h.HEADERS,
        h.END_HEADERS,
        1,
        h.field(b":status", b"200") + h.field(b"content-type", b"application/grpc"),
    ),
    h.frame(h.DATA, 0, 1, h.message(b"answer")),
    h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, 1, h.field(b"grpc-status", b"0")),
)
"""Of a connection's first call."""
GOES_AWAY = h.frame(h.GOAWAY, 0, 0, struct.pack(">II", 1, 0))
"""And the first call goes on."""


@within(30)
async def test_calls_that_wait_for_room_are_opened_when_the_server_allows_more() -> None:
    async with raw_server(h.settings((CALLS_MAX, 0))) as (server, channel):
        call = channel.unary_unary(path("Echo"))(b"", timeout=20)
        peer = await server.peers.get()
        begun = asyncio.ensure_future(peer.calls(1))
        await asyncio.sleep(0.3)
        assert not begun.done()
        peer.send(h.settings((CALLS_MAX, 100)))
        await begun
        peer.send(*ANSWER)
        assert await call == b"answer"


@within(30)
async def test_calls_that_wait_for_room_go_elsewhere_when_the_server_goes_away() -> None:
    async with raw_server(h.settings((CALLS_MAX, 1))) as (server, channel):
        stays = channel.stream_stream(path("Converse"))()
        waits = channel.unary_unary(path("Echo"))(b"", timeout=20)
        peer = await server.peers.get()
        await peer.calls(1)
        peer.send(GOES_AWAY)
        other = await server.peers.get()
        await other.calls(1)
        other.send(*ANSWER)
        assert await waits == b"answer"
        stays.cancel()


@within(30)
async def test_a_connection_that_was_left_is_closed_when_its_last_call_is_reset() -> None:
    async with raw_server(h.settings()) as (server, channel):
        call = channel.stream_stream(path("Converse"))()
        peer = await server.peers.get()
        await peer.calls(1)
        peer.send(GOES_AWAY, h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)))
        await call.code()
        while not peer.is_over:
            await peer.receive()


@pytest.mark.parametrize("length", [b"4", b"5", b"0", b"many"])
@within(30)
async def test_a_page_that_tells_its_length_ends_no_call_but_its_own(length: bytes) -> None:
    """As proxies answer what they cannot forward."""
    fields = h.field(b":status", b"404") + h.field(b"content-type", b"text/plain")
    page = (
        h.frame(h.HEADERS, h.END_HEADERS, 3, fields + h.field(b"content-length", length)),
        h.frame(h.DATA, h.END_STREAM, 3, b"page"),
    )
    async with raw_server(h.settings()) as (server, channel):
        first, second = (channel.unary_unary(path("Echo"))(b"", timeout=20) for _ in range(2))
        peer = await server.peers.get()
        await peer.calls(2)
        peer.send(*page, *ANSWER)
        assert await first == b"answer"
        assert await second.code() is grpc.StatusCode.UNIMPLEMENTED


@within(60)
async def test_a_hung_server_is_noticed_though_its_kernel_takes_what_is_said() -> None:
    async with raw_server(h.settings((4, 2**30)) + h.window_update(0, 2**30)) as (server, channel):
        call = channel.stream_stream(path("Converse"))()
        peer = await server.peers.get()
        await peer.calls(1)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        said = 0
        while not call.done():
            # In steps: what it takes is bounded, so the test ends although it looks at no clock.
            assert said * 0.2 < 5 * KEEPALIVE_SECONDS, "nobody has noticed"
            await call.write(bytes(1_000))
            said += 1
            await asyncio.sleep(0.2)


@within(30)
async def test_calls_that_wait_for_room_go_elsewhere_when_the_connection_is_lost() -> None:
    async with raw_server(h.settings((CALLS_MAX, 0))) as (server, channel):
        call = channel.unary_unary(path("Echo"))(b"", timeout=20)
        peer = await server.peers.get()
        while not any(one.kind == h.SETTINGS and one.flags & h.ACK for one in peer.frames):
            await peer.receive()
        peer.writer.transport.abort()
        other = await server.peers.get()
        other.send(h.settings((CALLS_MAX, 1)))
        await other.calls(1)
        other.send(*ANSWER)
        assert await call == b"answer"


@pytest.mark.parametrize("name", [b"grpc-status", b":status"])
@within(30)
async def test_a_status_of_thousands_of_digits_ends_no_call_but_its_own(name: bytes) -> None:
    status = h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, 3, h.field(name, b"9" * 5_000))
    async with raw_server(h.settings()) as (server, channel):
        first, second = (channel.unary_unary(path("Echo"))(b"", timeout=20) for _ in range(2))
        peer = await server.peers.get()
        await peer.calls(2)
        peer.send(status, *ANSWER)
        assert await first == b"answer"
        assert await second.code() is grpc.StatusCode.UNKNOWN


@within(30)
async def test_a_server_that_wants_fewer_pings_gets_fewer() -> None:
    """Else it would end each connection after some, and the calls on it (gRPC A8)."""
    calm = h.frame(h.GOAWAY, 0, 0, struct.pack(">II", 0, 11) + b"too_many_pings")
    async with raw_server(h.settings()) as (server, channel):
        first = channel.stream_stream(path("Converse"))()
        peer = await server.peers.get()
        await peer.calls(1)
        peer.send(calm)
        assert await first.code() is grpc.StatusCode.UNAVAILABLE
        call = channel.stream_stream(path("Converse"))()
        other = await server.peers.get()
        await other.calls(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.5 * KEEPALIVE_SECONDS):
                while not any(one.kind == h.PING for one in other.frames):
                    await other.receive()
                raise AssertionError("it was asked for a sign of life")
        assert not call.done()
        call.cancel()


@within(30)
async def test_calls_that_end_while_they_wait_for_room_are_forgotten() -> None:
    async with raw_server(h.settings((CALLS_MAX, 1))) as (server, channel):
        stays = channel.stream_stream(path("Converse"))()
        await (await server.peers.get()).calls(1)
        waits = [channel.unary_unary(path("Echo"))(b"", timeout=0.01) for _ in range(100)]
        assert {await call.code() for call in waits} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert not channel._waiting
        stays.cancel()
