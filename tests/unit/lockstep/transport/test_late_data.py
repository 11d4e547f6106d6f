"""Data for calls that are over: what was under way is dropped without a word, and a flood of it ends the connection."""

import struct
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from lockstep.transport.stream import WINDOW_BYTES
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, assert_served

ENHANCE_YOUR_CALM = 11
PIECE = 1 << 18


async def with_calls_that_are_over(ends: Ends, probe: Probe, count: int) -> h.RawClient:
    """Calls of a method that nobody serves: the server has ended each, and the client has not."""
    client = await h.RawClient.connect(int((await ends.serve(probe.handlers())).address.rpartition(":")[2]))
    for number in range(1, 2 * count, 2):
        client.send(h.request(number, "/nobody/Nothing"))
        await client.end_of(number)
    await client.pong()
    return client


@within(60)
async def test_what_was_under_way_when_calls_ended_is_dropped_and_others_go_on(
    our_ends: Ends, probe: Probe
) -> None:
    client = await with_calls_that_are_over(our_ends, probe, 3)
    for number in (1, 3, 5):
        for _ in range(WINDOW_BYTES // PIECE):
            client.send(h.frame(h.DATA, 0, number, bytes(PIECE)))
        client.send(h.frame(h.DATA, h.END_STREAM, number))
    await assert_served(client, 7)
    await client.close()


def plain() -> Iterator[bytes]:
    while True:
        yield h.frame(h.DATA, 0, 1, bytes(PIECE))


def padded() -> Iterator[bytes]:
    while True:
        yield h.frame(h.DATA, h.PADDED, 1, b"\xff" + bytes(PIECE))


def empty() -> Iterator[bytes]:
    while True:
        yield h.frame(h.DATA, 0, 1) * 1_000


@pytest.mark.parametrize("frames", [plain, padded, empty])
@within(60)
async def test_a_flood_for_a_call_that_is_over_ends_the_connection(
    our_ends: Ends, probe: Probe, caplog: pytest.LogCaptureFixture, frames: Callable[[], Iterator[bytes]]
) -> None:
    client = await with_calls_that_are_over(our_ends, probe, 1)
    for data in islice(frames(), 4 * WINDOW_BYTES // PIECE):
        frames_before = len(client.frames)
        client.send(data, h.frame(h.PING, 0, 0, bytes(8)))
        while len(client.frames) == frames_before and not client.is_over:
            await client.receive()
        if client.is_over or client.frames[-1].kind == h.GOAWAY:
            break
    [goaway] = [one for one in client.frames if one.kind == h.GOAWAY]
    assert struct.unpack_from(">II", goaway.payload)[1] == ENHANCE_YOUR_CALM
    assert [text for text in caplog.messages if "limit=late_bytes_max" in text]
    await client.close()
