"""What HTTP/2 allows and gRPC's libraries seldom do: messages and field blocks cut anywhere, padding, unknown frames."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from lockstep.transport.stream import WINDOW_BYTES
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, numbered, path

FRAMES_BEYOND_WINDOW = 20_000
"""Each with 240 bytes of padding: more than the 4 MiB of a call's window."""


@pytest.fixture
async def port(our_ends: Ends, probe: Probe) -> int:
    return int((await our_ends.serve(probe.handlers())).address.rpartition(":")[2])


@pytest.fixture
async def client(port: int) -> AsyncIterator[h.RawClient]:
    made = await h.RawClient.connect(port)
    yield made
    await made.close()


def padded(stream: int, data: bytes, flags: int = 0, padding_bytes: int = 7) -> bytes:
    payload = bytes((padding_bytes,)) + data + bytes(padding_bytes)
    return h.frame(h.DATA, h.PADDED | flags, stream, payload)


def padded_in_every_way(stream: int, data: bytes) -> bytes:
    """Without padding, with more than data, and with nothing else."""
    return b"".join(
        (
            padded(stream, data[:3], padding_bytes=0),
            padded(stream, b"", padding_bytes=0),
            padded(stream, data[3:9], padding_bytes=255),
            padded(stream, b"", padding_bytes=255),
            padded(stream, data[9:]),
            padded(stream, b"", h.END_STREAM),
        )
    )


def in_single_bytes(stream: int, data: bytes) -> bytes:
    frames = [h.frame(h.DATA, 0, stream, data[at : at + 1]) for at in range(len(data))]
    return b"".join((*frames, h.frame(h.DATA, h.END_STREAM, stream)))


def among_others(stream: int, data: bytes) -> bytes:
    half = len(data) // 2
    return b"".join(
        (
            h.frame(h.PRIORITY, 0, stream, struct.pack(">IB", 0, 15)),
            h.frame(0xFE, 0xFF, stream, b"unknown"),
            h.frame(h.DATA, 0, stream, data[:half]),
            h.frame(0x2A, 0, 0, b"unknown"),
            h.frame(h.DATA, 0, stream),
            h.frame(h.PING, 0, 0, b"12345678"),
            h.settings((0x7777, 5), (4, 2**30)),
            h.window_update(stream, 1),
            h.frame(h.DATA, h.END_STREAM, stream, data[half:]),
        )
    )


WAYS: dict[str, Callable[[int, bytes], bytes]] = {
    "at once": lambda stream, data: h.frame(h.DATA, h.END_STREAM, stream, data),
    "in single bytes": in_single_bytes,
    "padded": lambda stream, data: padded(stream, data[:9]) + padded(stream, data[9:], h.END_STREAM),
    "padded in every way": padded_in_every_way,
    "among others": among_others,
}


@pytest.mark.parametrize("way", WAYS)
@within(30)
async def test_messages_may_be_cut_into_frames_in_any_way(client: h.RawClient, way: str) -> None:
    data = b"".join(map(h.message, (b"first", b"", b"second", bytes(300), b"")))
    client.send(h.request(1, path("Converse")), WAYS[way](1, data))
    assert await client.end_of(1)
    assert client.data_of(1) == data


@within(30)
async def test_frames_may_be_cut_into_packets_in_any_way(client: h.RawClient) -> None:
    frames = (
        h.call(1, path("Echo"), b"slowly")
        + h.frame(h.PING, 0, 0, b"12345678")
        + h.call(3, path("Echo"), b"so")
        + h.request(5, path("Echo"))
        + padded_in_every_way(5, h.message(b"in the end"))
    )
    for at in range(len(frames)):
        client.send(frames[at : at + 1])
        await asyncio.sleep(0.001)
    said = {1: b"slowly", 3: b"so", 5: b"in the end"}
    for stream, data in said.items():
        assert await client.end_of(stream)
        assert client.data_of(stream) == h.message(data)


@within(30)
async def test_field_blocks_may_be_cut_anywhere(client: h.RawClient) -> None:
    block = h.request_fields(path("Echo"), (b"long", b"x" * 300))
    client.send(
        h.frame(h.HEADERS, 0, 1, block[:1]),
        *(h.frame(h.CONTINUATION, 0, 1, block[at : at + 1]) for at in range(1, 40)),
        h.frame(h.CONTINUATION, 0, 1),
        h.frame(h.CONTINUATION, h.END_HEADERS, 1, block[40:]),
        h.frame(h.DATA, h.END_STREAM, 1, h.message(b"cut")),
    )
    assert await client.end_of(1)
    assert client.data_of(1) == h.message(b"cut")


@pytest.mark.parametrize("is_padded", [False, True])
@within(30)
async def test_field_blocks_may_have_priorities_and_padding(client: h.RawClient, is_padded: bool) -> None:
    block, flags = struct.pack(">IB", 0, 3) + h.request_fields(path("Echo")), h.END_HEADERS | h.WITH_PRIORITY
    if is_padded:
        block, flags = b"\x05" + block + bytes(5), flags | h.PADDED
    client.send(h.frame(h.HEADERS, flags, 1, block), h.frame(h.DATA, h.END_STREAM, 1, h.message(b"so")))
    assert await client.end_of(1)
    assert client.data_of(1) == h.message(b"so")


@within(30)
async def test_a_request_may_end_with_trailers(client: h.RawClient) -> None:
    client.send(
        h.request(1, path("Sum")),
        h.frame(h.DATA, 0, 1, h.message(b"abc")),
        h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, 1, h.field(b"checksum", b"1")),
    )
    assert await client.end_of(1)
    assert client.data_of(1) == h.message(COUNT.pack(1, 3))


@pytest.mark.parametrize("rest", [h.message(b"")[:1], h.message(b"")[:4], h.message(b"part", length=5)])
@within(30)
async def test_a_request_that_ends_within_a_message_is_refused(client: h.RawClient, rest: bytes) -> None:
    client.send(h.request(1, path("Sum")), h.frame(h.DATA, h.END_STREAM, 1, h.message(b"abc") + rest))
    assert await client.end_of(1)
    assert not client.data_of(1)


@pytest.mark.parametrize("size", [20_000, 200_000])
@within(30)
async def test_a_padded_frame_may_be_bigger_than_the_smallest_limit(client: h.RawClient, size: int) -> None:
    data = h.message(bytes(size))
    client.send(h.request(1, path("Echo")), padded(1, data, h.END_STREAM))
    assert await client.end_of(1)
    assert client.data_of(1) == data


@within(30)
async def test_padding_gives_its_window_back(client: h.RawClient) -> None:
    """More than a window full of padding: without it being given back, the call would stand still."""
    client.send(h.request(1, path("Sum")))
    await client.pong()
    for one in range(FRAMES_BEYOND_WINDOW):
        data = padded(1, h.message(b"%5d" % one), padding_bytes=240)
        await client.room(1, len(data))
        client.sent += len(data) - h.HEAD_BYTES
        client.send(data)
    client.send(h.frame(h.DATA, h.END_STREAM, 1))
    assert await client.end_of(1)
    assert client.data_of(1) == h.message(COUNT.pack(FRAMES_BEYOND_WINDOW, 5 * FRAMES_BEYOND_WINDOW))


@within(30)
async def test_who_sends_padded_messages_that_nobody_reads_is_held_back(
    client: h.RawClient, probe: Probe
) -> None:
    """As whoever sends others: room is given back for the padding, and for messages when they are read."""
    client.send(h.request(1, path("SumLater")))
    assert await probe.begun.get() == "SumLater"
    await client.pong()
    window, count, is_held_back = client.window_of(1), 0, False
    while not is_held_back:
        is_held_back = True
        while client.sent + 1 + 105 + 255 <= client.window_of(1):
            is_held_back = False
            assert count * 105 <= window, "nothing holds the sender back"
            client.send(padded(1, h.message(numbered(count, 100)), padding_bytes=255))
            client.sent += 1 + 105 + 255
            count += 1
        await client.pong()
    assert client.window_of(1) > window, "padding is not given back"
    probe.may_read.set()
    client.send(padded(1, b"", h.END_STREAM))
    assert await client.end_of(1)
    assert client.data_of(1) == h.message(COUNT.pack(count, 100 * count))


@pytest.mark.parametrize("data", [b"", b"more"])
@within(30)
async def test_padded_data_beyond_the_window_ends_the_connection(
    client: h.RawClient, probe: Probe, data: bytes
) -> None:
    client.send(h.request(1, path("SumLater")))
    assert await probe.begun.get() == "SumLater"
    await client.pong()
    first, prefix_bytes = h.message(b"nobody reads it"), len(h.message(b""))
    rest = bytes(client.window_of(1) - len(first) - prefix_bytes)
    client.send(h.frame(h.DATA, 0, 1, first + h.message(rest)))
    await client.pong()
    client.send(padded(1, data))
    goodbye = await client.end_of(1)
    assert goodbye is not None and goodbye.kind == h.GOAWAY


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x02x"])
@within(30)
async def test_padding_that_does_not_fit_its_frame_ends_the_connection(
    client: h.RawClient, payload: bytes
) -> None:
    """RFC 9113, 6.1."""
    client.send(h.request(1, path("Sum")), h.frame(h.DATA, h.PADDED, 1, payload))
    goodbye = await client.end_of(1)
    assert goodbye is not None and goodbye.kind == h.GOAWAY


@within(30)
async def test_padded_data_of_calls_that_are_over_is_no_loss_to_later_ones(client: h.RawClient) -> None:
    """Windows of the connection are given back for what nobody will ever read, as much as was under way when calls ended."""
    await client.pong()
    number, window = 1, client.window_of(0)
    assert window > 2 * WINDOW_BYTES
    while client.sent <= window:
        client.send(h.request(number, "/nobody/Nothing"))
        await client.end_of(number)
        data = padded(number, bytes(60_000))
        for _ in range(WINDOW_BYTES // len(data)):
            await client.room(0, len(data))
            client.send(data)
            client.sent += len(data) - h.HEAD_BYTES
        number += 2
    client.send(h.call(number, path("Echo"), b"next"))
    assert await client.end_of(number)
    assert client.data_of(number) == h.message(b"next")


LENGTHS: dict[str, tuple[bytes, ...]] = {
    "right": (b"8",),
    "too short": (b"7",),
    "too long": (b"9",),
    "nothing": (b"0",),
    "not a number": (b"many",),
    "two": (b"8", b"9"),
}
"""What a request with a message of three bytes may say of its length."""


@pytest.mark.parametrize("name", LENGTHS)
@within(30)
async def test_a_request_that_tells_its_length_ends_no_other(
    client: h.RawClient, probe: Probe, name: str
) -> None:
    """Nobody asks how long it is: its messages say so themselves."""
    client.send(h.call(1, path("Wait"), b""))
    await probe.begun.get()
    client.send(
        h.request(3, path("Echo"), *((b"content-length", length) for length in LENGTHS[name])),
        h.frame(h.DATA, 0, 3, h.message(b"one")),
        padded(3, b"", h.END_STREAM),
    )
    assert await client.end_of(3)
    assert client.data_of(3) == h.message(b"one")
    await client.pong()
    assert probe.ended.empty()


@within(30)
async def test_a_server_sends_no_more_than_the_windows_of_its_peer(port: int) -> None:
    client = await h.RawClient.connect(port, h.PREFACE + h.settings((4, 10), (5, 16_384)))
    answer = h.message(numbered(0, 100))

    async def receive() -> bytes:
        for _ in range(3):
            await client.pong()
            await asyncio.sleep(0.05)
        await client.pong()
        return client.data_of(1)

    client.send(h.call(1, path("Count"), COUNT.pack(1, 100)))
    assert await receive() == answer[:10]
    client.send(h.window_update(1, 7))
    assert await receive() == answer[:17]
    client.send(h.settings((4, 20)))  # Windows of open streams grow by the difference.
    assert await receive() == answer[:27]
    client.send(h.settings((4, 0)), h.window_update(1, 20))  # It is at -20 now, and then at 0.
    assert await receive() == answer[:27]
    client.send(h.window_update(1, 1_000))
    assert await client.end_of(1)
    assert client.data_of(1) == answer
    await client.close()


@within(30)
async def test_a_server_ends_a_call_at_its_deadline_by_itself(client: h.RawClient, probe: Probe) -> None:
    client.send(
        h.request(1, path("Wait"), (b"grpc-timeout", b"200m")),
        h.frame(h.DATA, h.END_STREAM, 1, h.message(b"")),
    )
    assert await client.end_of(1)
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_a_request_that_is_none_of_grpcs_ends_alone(client: h.RawClient, probe: Probe) -> None:
    client.send(h.call(1, path("Wait"), b""))
    await probe.begun.get()
    fields = h.request_fields(path("Echo")).replace(b"POST", b"GET!")
    client.send(h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, 3, fields))
    assert await client.end_of(3)
    client.send(h.call(5, path("Echo"), b"next"))
    assert await client.end_of(5)
    assert client.data_of(5) == h.message(b"next")
    client.send(h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await probe.ended.get() == "cancelled"


@within(30)
async def test_a_reset_cancels_the_handler(client: h.RawClient, probe: Probe) -> None:
    client.send(h.call(1, path("Wait"), b""))
    await probe.begun.get()
    client.send(h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await probe.ended.get() == "cancelled"
    client.send(h.call(3, path("Echo"), b"next"))
    assert await client.end_of(3)
    assert client.data_of(3) == h.message(b"next")


@within(30)
async def test_a_connection_that_is_reset_cancels_its_handlers(client: h.RawClient, probe: Probe) -> None:
    client.send(h.call(1, path("Wait"), b""), h.call(3, path("Wait"), b""))
    for _ in range(2):
        await probe.begun.get()
    await client.close()
    for _ in range(2):
        assert await probe.ended.get() == "cancelled"


@within(30)
async def test_a_client_that_says_goodbye_gets_the_answers_it_waits_for(client: h.RawClient) -> None:
    client.send(
        h.request(1, path("Echo")),
        h.frame(h.GOAWAY, 0, 0, bytes(8)),
        h.frame(h.DATA, h.END_STREAM, 1, h.message(b"last")),
    )
    await client.end_of(1)
    assert client.data_of(1) == h.message(b"last")
