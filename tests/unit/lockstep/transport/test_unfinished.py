"""Messages of which only a part has come: what they may take, of a connection and of all."""

import random
import struct
from typing import Any, cast

import grpc
import pytest
from hpack import Decoder

from lockstep.transport.stream import WINDOW_BYTES, Stream
from lockstep.transport.unfinished import (
    CONNECTION_EARLY_BYTES_MAX,
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
        self.bytes = self.room = 0
        """Of its message, and how much of that may come."""

    def has(self, size: int, now: float = 0.0) -> None:
        self.bytes = size
        self._of_connection.count(cast(Stream, self), size, now)

    def begin(self, now: float = 0.0) -> None:
        """All that its window has given comes."""
        self.room = WINDOW_BYTES
        self.go_on(now)

    def go_on(self, now: float = 0.0) -> bool:
        """All that there is room for comes; answers whether there was some."""
        had_room = self.room > self.bytes
        if had_room:
            self.has(self.room, now)
            self.give_back_early()
        return had_room

    def give_back_early(self) -> None:
        early = self.bytes + WINDOW_BYTES - self.room
        if self._of_connection.may_have(cast(Stream, self), early):
            self.room += early

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


@pytest.mark.parametrize("seed", range(20))
def test_every_message_becomes_whole_however_many_come_at_once(
    unfinished: Unfinished, refused: Refused, seed: int
) -> None:
    """One that needs no more than its window never asks; whichever goes on next, none waits for ever, and few wait for none."""
    chance, connection = random.Random(seed), unfinished.of_connection()
    said = {Said(connection): chance.randint(5, 40) * MIB for _ in range(12)}
    for one in said:
        one.begin()
    while said:
        can_go_on = [one for one in said if one.room > one.bytes]
        assert can_go_on, "all of them wait"
        one = chance.choice(can_go_on)
        one.go_on()
        if one.bytes >= said[one]:
            del said[one]
            one.has(0)
        first = max((one.bytes for one in said), default=0)
        assert connection.bytes <= 12 * WINDOW_BYTES + CONNECTION_EARLY_BYTES_MAX + first
    assert not refused.limits
    assert unfinished.bytes == 0


def test_the_message_that_came_first_goes_on_and_the_others_in_their_turn(unfinished: Unfinished) -> None:
    connection = unfinished.of_connection()
    first, second, third = (Said(connection) for _ in range(3))
    first.begin()
    second.begin()
    while second.go_on():
        pass
    assert second.bytes == CONNECTION_EARLY_BYTES_MAX
    third.begin()
    assert not third.go_on()
    while first.bytes < 100 * MIB:
        assert first.go_on()
    first.has(0)
    assert second.go_on(), "it is the first now"
    assert not third.go_on()
    second.has(0)
    assert third.go_on()


def test_a_message_that_waits_for_room_is_not_slow_and_gets_it_from_one_that_is(
    unfinished: Unfinished, refused: Refused
) -> None:
    connection = unfinished.of_connection()
    slow, waiting = Said(connection), Said(connection)
    slow.begin()
    while slow.bytes <= CONNECTION_EARLY_BYTES_MAX:
        assert slow.go_on()
    waiting.begin()
    assert not waiting.go_on()
    for second in range(0, 10_000, 10):
        connection.refuse_slow(second)
        if slow.refusals:
            break
    assert slow.refusals
    assert not waiting.refusals
    assert waiting.go_on(second)
    connection.refuse_slow(second + 10)
    assert refused.limits == ["slow_messages"]


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
async def test_bodies_that_never_end_fill_no_server(our_ends: Ends, probe: Probe) -> None:
    """Each call begins a message of 150 MiB. The first stops in the midst of it, and the others send what they get room for."""
    served = await our_ends.serve(probe.handlers())
    client = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    unfinished, part = served.server._intake.unfinished, 1 << 14
    sent = dict.fromkeys(range(1, 13, 2), 0)

    async def send(number: int, most: int) -> None:
        parts = (min(client.window_of(number), most) - sent[number]) // part
        client.send(*(h.frame(h.DATA, 0, number, bytes(part)) for _ in range(parts)))
        sent[number] += parts * part
        await client.pong()

    for number in sent:
        begin = h.message(bytes(part - 5), length=150 * MIB)
        client.send(h.request(number, path("Sum")), h.frame(h.DATA, 0, number, begin))
        sent[number] += part
    await client.pong()
    await send(1, 3 * MIB)
    for _ in range(30):
        for number in list(sent)[1:]:
            await send(number, 140 * MIB)
    assert unfinished.bytes == sum(sent.values())
    assert unfinished.bytes > CONNECTION_EARLY_BYTES_MAX
    assert unfinished.bytes <= CONNECTION_EARLY_BYTES_MAX + len(sent) * WINDOW_BYTES
    client.send(h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)))
    for _ in range(60):
        await send(3, 140 * MIB)
    assert sent[3] == 140 * MIB, "it is the first now"
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
