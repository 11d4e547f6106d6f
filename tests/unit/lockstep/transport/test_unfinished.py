"""Messages of which only a part has come: what they may take, of a connection and of all."""

import struct
from typing import Any, cast

import grpc
import pytest
from hpack import Decoder

from lockstep.transport.stream import Stream
from lockstep.transport.unfinished import (
    CONNECTION_UNFINISHED_BYTES_MAX,
    SLOW_BYTES_A_SECOND,
    SLOW_SECONDS,
    UNFINISHED_BYTES_LEFT,
    UNFINISHED_BYTES_MAX,
    ConnectionUnfinished,
    Unfinished,
)
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, path

MIB = 1 << 20


class Said:
    """A call whose message is not whole; forgets it when it is refused."""

    def __init__(self, of_connection: ConnectionUnfinished) -> None:
        self._of_connection = of_connection
        self.refusals: list[grpc.StatusCode] = []
        self.has_unread = False

    def has(self, size: int, now: float = 0.0) -> None:
        self._of_connection.count(cast(Stream, self), size, now)

    def refuse(self, code: grpc.StatusCode, _details: str) -> None:
        self.refusals.append(code)
        self.has(0)


class Refused:
    """Which limits have refused something."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def __call__(self, limit: str, _text: str) -> None:
        self.limits.append(limit)


REFUSED = [grpc.StatusCode.RESOURCE_EXHAUSTED]


@pytest.fixture
def refused() -> Refused:
    return Refused()


@pytest.fixture
def unfinished(refused: Refused) -> Unfinished:
    return Unfinished(refused)


def test_the_biggest_message_of_a_connection_goes_when_all_of_its_are_too_much(
    unfinished: Unfinished, refused: Refused
) -> None:
    connection = unfinished.of_connection()
    said = [Said(connection) for _ in range(3)]
    for one, size in zip(said, (20 * MIB, 30 * MIB, 10 * MIB), strict=True):
        one.has(size)
    assert not refused.limits
    said[2].has(15 * MIB)
    assert [one.refusals for one in said] == [[], REFUSED, []]
    assert refused.limits == ["connection_unfinished_bytes_max"]
    assert connection.bytes == unfinished.bytes == 35 * MIB


def test_a_message_alone_on_its_connection_may_be_bigger(unfinished: Unfinished) -> None:
    one = Said(unfinished.of_connection())
    one.has(CONNECTION_UNFINISHED_BYTES_MAX + 50 * MIB)
    one.has(0)
    assert not one.refusals and not unfinished.bytes


def test_who_has_most_of_the_memory_of_all_loses_it(unfinished: Unfinished, refused: Refused) -> None:
    small = [Said(unfinished.of_connection()) for _ in range(8)]
    big = [Said(unfinished.of_connection()) for _ in range(4)]
    for one in small:
        one.has(MIB)
    for one in big:
        one.has(60 * MIB)
    assert not refused.limits
    small[0].has(MIB + UNFINISHED_BYTES_MAX - unfinished.bytes + 1)
    assert refused.limits == ["unfinished_bytes_max"]
    assert not any(one.refusals for one in small)
    assert sorted(len(one.refusals) for one in big) == [0, 0, 0, 1]
    assert unfinished.bytes <= UNFINISHED_BYTES_LEFT


def test_messages_that_are_whole_or_given_up_count_no_more(unfinished: Unfinished) -> None:
    for _ in range(100):
        one = Said(unfinished.of_connection())
        one.has(50 * MIB)
        one.has(0)
        one.has(0)
    assert unfinished.bytes == 0


def test_a_message_that_comes_too_slowly_is_refused(unfinished: Unfinished, refused: Refused) -> None:
    connection = unfinished.of_connection()
    slow, steady, unread = (Said(connection) for _ in range(3))
    unread.has_unread = True
    for second in range(1000):
        slow.has(8 << 10, second)
        steady.has((8 << 10) + second * SLOW_BYTES_A_SECOND, second)
        unread.has(8 << 10, second)
        connection.refuse_slow(second)
        if slow.refusals:
            break
    assert SLOW_SECONDS <= second <= SLOW_SECONDS + 2
    assert refused.limits == ["slow_messages"]
    assert not steady.refusals, "a slow link is none"
    assert not unread.refusals, "it waits for us"


@within(60)
async def test_a_connection_looks_at_what_comes_too_slowly(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    served.server._intake.unfinished.slow_seconds = 0.1
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    client.send(h.request(1, path("Sum")), h.frame(h.DATA, 0, 1, h.message(bytes(5_000), length=MIB)))
    end = await client.end_of(1)
    assert end is not None and dict(Decoder().decode(end.payload, raw=True))[b"grpc-status"] == b"8"
    await client.close()


@within(120)
async def test_bodies_that_never_end_fill_no_server(
    our_ends: Ends, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call begins a message of 160 MiB, and gets its window back as it comes."""
    served = await our_ends.serve(probe.handlers())
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    numbers = range(1, 13, 2)
    for number in numbers:
        client.send(
            h.request(number, path("Sum")), h.frame(h.DATA, 0, number, h.message(b"", length=150 * MIB))
        )
    for _ in range(16):
        for number in numbers:
            client.send(*(h.frame(h.DATA, 0, number, bytes(1 << 14)) for _ in range(64)))
        await client.pong()
    over = {one.stream for one in client.frames if h.ends(one) and one.kind == h.HEADERS}
    assert 1 <= len(over) <= 4
    left = len(numbers) - len(over)
    assert left * 16 * MIB <= CONNECTION_UNFINISHED_BYTES_MAX + 16 * MIB
    assert [text for text in caplog.messages if "limit=connection_unfinished_bytes_max" in text]
    client.send(h.call(101, path("Echo"), b"next"))
    await client.end_of(101)
    assert client.data_of(101) == h.message(b"next")
    await client.close()


@pytest.mark.parametrize("is_at_once", [False, True])
@within(60)
async def test_messages_behind_the_only_request_of_a_call_are_kept_for_nobody(
    our_ends: Ends, probe: Probe, is_at_once: bool
) -> None:
    """They would be for as long as the call waits."""
    served = await our_ends.serve(probe.handlers())
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    more = h.frame(h.DATA, 0, 1, h.message(bytes(10_000)))
    client.send(
        h.request(1, path("Wait")), h.frame(h.DATA, 0, 1, h.message(b"")), more if is_at_once else b""
    )
    if not is_at_once:
        await probe.begun.get()
        client.send(more)
    end = await client.end_of(1)
    assert end is not None and dict(Decoder().decode(end.payload, raw=True))[b"grpc-status"] == b"13"
    client.send(h.call(3, path("Echo"), b"next"))
    await client.end_of(3)
    assert client.data_of(3) == h.message(b"next")
    await client.close()


@within(60)
async def test_a_whole_message_leaves_nothing_counted(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    channel = our_ends.open_channel(served.address)
    sizes = (3, 5_000, 100_000, 9 * MIB)
    call: Any = channel.stream_unary(path("Sum"))()
    for size in sizes:
        await call.write(bytes(size))
    assert await call == COUNT.pack(len(sizes), sum(sizes))
    given_up: Any = channel.stream_unary(path("Sum"))()
    await given_up.write(bytes(100_000))
    given_up.cancel()
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    client.send(h.request(1, path("Sum")), h.frame(h.DATA, 0, 1, h.message(bytes(50_000), length=MIB)))
    await client.pong()
    unfinished = served.server._intake.unfinished
    assert unfinished.bytes == 50_005
    client.send(h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)))
    await client.pong()
    assert unfinished.bytes == 0
    client.send(h.request(3, path("Sum")), h.frame(h.DATA, 0, 3, h.message(bytes(50_000), length=MIB)))
    await client.pong()
    await client.close()
    while unfinished.bytes:
        assert await channel.unary_unary(path("Echo"))(b"x") == b"x"
