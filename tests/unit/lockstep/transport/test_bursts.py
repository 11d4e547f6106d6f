"""Thousands of calls at once on one connection: as many as can be served are offered, and the others wait at their client."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from h2.settings import SettingCodes
from h2.stream import H2Stream
from hpack import Decoder

from lockstep.transport.calls_offered import CALLS_FREE_MIN, CALLS_OFFERED, CALLS_OFFERED_STEP, KEPT_MAX
from lockstep.transport.connection import (
    CALLS_OF_CONNECTION_AT_ONCE,
    DATA_FRAMES_AT_ONCE,
    READ_BYTES_MUCH,
    Connection,
)
from lockstep.transport.http2 import Http2
from lockstep.transport.intake import CALLS_A_TURN, RESETS_A_SECOND, RESETS_BURST, Intake, Peer
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import GRPCIO, OURS, Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, assert_served, path, service, unary

CALLS = 6_000
MAX_CONCURRENT_STREAMS = 3
REFUSED_STREAM = 7


def offered(client: h.RawClient) -> int:
    """Streams that the server allows, as it said last."""
    number = 0
    for one in client.frames:
        if one.kind == h.SETTINGS and not one.flags & h.ACK:
            number = dict(struct.iter_unpack(">HI", one.payload)).get(MAX_CONCURRENT_STREAMS, number)
    return number


async def serve(ends: Ends, handlers: grpc.GenericRpcHandler) -> h.RawClient:
    """A client of these services that knows the server's settings."""
    client = await h.RawClient.connect(int((await ends.serve(handlers)).address.rpartition(":")[2]))
    while not offered(client):
        await client.receive()
    return client


@within(200)
async def test_all_of_thousands_of_calls_at_once_are_answered(our_ends: Ends) -> None:
    """As stock clients make them: as many as the server allows, and the next ones when these are over."""
    at_once = most_at_once = 0

    async def answer(data: bytes, _context: Any) -> bytes:
        nonlocal at_once, most_at_once
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return data

    client = await serve(our_ends, service(Answer=unary(answer)))
    begun = answered = seen = 0
    while answered < CALLS:
        more = min(CALLS - begun, offered(client) - (begun - answered))
        client.send(*(h.call(1 + 2 * (begun + one), path("Answer"), b"x") for one in range(more)))
        begun += more
        await client.receive()
        assert not client.is_over, f"the connection is over behind {answered} answers"
        for one in client.frames[seen:]:
            if one.kind == h.HEADERS and one.flags & h.END_STREAM:
                assert one.payload
                answered += 1
            assert one.kind not in {h.RST_STREAM, h.GOAWAY}
        seen = len(client.frames)
    messages = [one for one in client.frames if one.kind == h.DATA]
    assert len(messages) == CALLS and all(one.payload == h.message(b"x") for one in messages)
    assert most_at_once <= CALLS_OFFERED
    await client.close()


@within(60)
async def test_calls_beyond_those_offered_are_refused_one_by_one(our_ends: Ends, probe: Probe) -> None:
    client = await serve(our_ends, probe.handlers())
    allowed, more = offered(client), 20
    assert allowed < 1_000
    numbers = [1 + 2 * one for one in range(allowed + more)]
    client.send(*(h.call(number, path("Wait"), b"") for number in numbers))
    for number in numbers[-more:]:
        end = await client.end_of(number)
        assert end is not None and (end.kind, struct.unpack(">I", end.payload)) == (
            h.RST_STREAM,
            (REFUSED_STREAM,),
        )
    assert probe.begun.qsize() == allowed
    client.send(
        h.frame(h.RST_STREAM, 0, 1, struct.pack(">I", 8)), h.call(numbers[-1] + 2, path("Echo"), b"x")
    )
    await client.end_of(numbers[-1] + 2)
    assert client.data_of(numbers[-1] + 2) == h.message(b"x")
    await client.close()


@within(60)
async def test_who_begins_calls_beyond_those_offered_on_and_on_is_cut_off(
    our_ends: Ends, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serve(our_ends, probe.handlers())
    for number in range(1, 2 * (offered(client) + 2 * RESETS_BURST), 2):
        client.send(h.call(number, path("Wait"), b""))
    while not client.is_over:
        await client.receive()
    assert {"calls_max", "resets_max"} <= {text.split()[1][6:] for text in caplog.messages}
    await client.close()


@within(60)
async def test_clients_with_many_calls_take_turns(our_ends: Ends) -> None:
    begun: list[bytes] = []

    async def begin(data: bytes, _context: Any) -> bytes:
        begun.append(data)
        return data

    served = await our_ends.serve(service(Begin=unary(begin)))
    port, each = int(served.address.rpartition(":")[2]), 10 * CALLS_OF_CONNECTION_AT_ONCE
    clients = {name: await h.RawClient.connect(port) for name in (b"one", b"other")}
    for client in clients.values():
        await client.pong()
    for name, client in clients.items():
        client.send(*(h.call(1 + 2 * number, path("Begin"), name) for number in range(each)))
    for client in clients.values():
        await client.end_of(2 * each - 1)
    assert len(begun) == 2 * each
    assert begun.index(b"other") < 4 * CALLS_OF_CONNECTION_AT_ONCE
    assert begun.index(b"one") < 4 * CALLS_OF_CONNECTION_AT_ONCE
    for client in clients.values():
        await client.close()


@within(60)
async def test_settings_have_their_turns(our_ends: Ends, probe: Probe) -> None:
    """Each changes something of every stream."""
    client = await serve(our_ends, probe.handlers())
    await client.pong()
    turns, is_over = 0, asyncio.Event()

    async def go_on() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(go_on())
    client.send(*(h.settings((4, 2**30 - number)) for number in range(40)))
    while sum(one.kind == h.SETTINGS and bool(one.flags & h.ACK) for one in client.frames) < 41:
        await client.receive()
    is_over.set()
    await other
    assert turns >= 40
    await client.close()


SMALL_DATA = {
    "nothing": h.frame(h.DATA, 0, 1),
    "padding": h.frame(h.DATA, h.PADDED, 1, bytes(1)),
    "a byte": h.frame(h.DATA, 0, 1, b"x"),
    "a message": h.frame(h.DATA, 0, 1, h.message(b"x")),
}


@within(60)
@pytest.mark.parametrize("name", SMALL_DATA)
async def test_frames_with_little_in_them_have_their_turns(our_ends: Ends, probe: Probe, name: str) -> None:
    """Thousands of them come in one read, and each takes as long as one with much in it."""
    client = await serve(our_ends, probe.handlers())
    client.send(h.request(1, path("Sum")))
    if name == "a byte":
        client.send(h.frame(h.DATA, 0, 1, h.message(b"", length=2**20)))
    await client.pong()
    turns, is_over, frames = 0, asyncio.Event(), 40 * DATA_FRAMES_AT_ONCE

    async def go_on() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(go_on())
    client.send(SMALL_DATA[name] * frames)
    await client.pong()
    is_over.set()
    await other
    assert turns >= frames / DATA_FRAMES_AT_ONCE
    await client.close()


class Readable:
    """A transport that knows whether it is read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str) -> Any:
        return None

    def set_write_buffer_limits(self, **_limits: int) -> None: ...
    def write(self, _data: bytes) -> None: ...
    def abort(self) -> None: ...


async def test_others_are_read_behind_a_read_that_was_full() -> None:
    """The loop would read the same connection again, dozens of times, before anything else has its turn."""
    transport: Any = Readable()
    connection = Connection(
        lambda *_: pytest.fail("no call"), lambda _: None, lambda *_: None, intake=Intake(lambda *_: None)
    )
    connection.connection_made(transport)
    connection.data_received(h.GREETING)
    await asyncio.sleep(0)
    unknown = h.frame(0xEE, 0, 0, bytes(READ_BYTES_MUCH // 4))
    connection.data_received(unknown)
    assert transport.is_read
    connection.data_received(unknown * 4)
    assert not transport.is_read
    await asyncio.sleep(0)
    assert transport.is_read
    connection.connection_lost(None)


@within(30)
async def test_a_client_whose_bytes_wait_again_and_again_is_heard_by_what_is_worked_off() -> None:
    """Nothing more is read of it meanwhile: what it answers stands behind the bytes that wait."""
    transport: Any = Readable()
    lost: list[str] = []
    connection = Connection(
        lambda *_: pytest.fail("no call"),
        lambda _: None,
        lambda _, why: lost.append(why),
        0.1,
        Intake(lambda *_: None),
    )
    connection.connection_made(transport)
    connection.data_received(h.GREETING)
    for _ in range(50):
        connection._hold(asyncio.get_running_loop().call_soon)
        await asyncio.sleep(0.02)
    assert not lost
    connection.connection_lost(None)


class Counted(dict[int, H2Stream]):
    """Counts how many of its entries somebody looks at, one after the other."""

    looked_at = 0

    def items(self) -> Any:
        self.looked_at += len(self)
        return super().items()

    def values(self) -> Any:
        self.looked_at += len(self)
        return super().values()


@pytest.mark.parametrize("are_over", [False, True], ids=["open", "over"])
def test_the_beginning_of_a_call_costs_the_same_however_many_there_are_and_were(are_over: bool) -> None:
    http2 = Http2(False, {SettingCodes.MAX_CONCURRENT_STREAMS: CALLS_OFFERED})
    http2.initiate_connection()
    http2.streams = counted = Counted()
    http2.receive_data(h.GREETING)
    for number in range(1, 2 * 3_000, 2):
        http2.receive_data(h.request(number, path("Wait")))
        if are_over:
            http2.reset_stream(number)
    assert counted.looked_at < 4 * 3_000
    assert len(counted) < (200 if are_over else 3_001)


@pytest.mark.parametrize("client", [OURS, GRPCIO])
@within(60)
async def test_streams_that_stay_leave_room_for_other_calls(client: str, probe: Probe) -> None:
    """Sessions, say: some client has hundreds of them on one connection, and calls beside them."""
    ends = Ends(client, OURS)
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    calls = [channel.stream_stream(path("Converse"))() for _ in range(2 * CALLS_OFFERED)]

    async def talk(call: Any) -> Any:
        await call.write(b"here")
        return await call.read()

    assert set(await asyncio.gather(*map(talk, calls))) == {b"here"}
    assert await channel.unary_unary(path("Echo"))(b"x", timeout=30) == b"x"
    for call in calls:
        call.cancel()
    await ends.close()


@within(60)
async def test_more_calls_are_offered_once_streams_stay_and_no_more_than_that(
    our_ends: Ends, probe: Probe
) -> None:
    client = await serve(our_ends, probe.handlers())
    for number in range(1, 2 * (CALLS_OFFERED - CALLS_FREE_MIN), 2):
        client.send(h.request(number, path("Converse")), h.frame(h.DATA, 0, number, h.message(b"here")))
    await client.pong()
    assert offered(client) == CALLS_OFFERED
    client.send(h.request(1_001, path("Converse")), h.frame(h.DATA, 0, 1_001, h.message(b"here")))
    while not client.data_of(1_001):
        await client.receive()
    await client.pong()
    assert offered(client) == CALLS_OFFERED + CALLS_OFFERED_STEP
    await client.close()


def asking(number: int) -> bytes:
    return h.call(number, path("Wait"), b"")


def silent(number: int) -> bytes:
    return h.request(number, path("Converse"))


@within(60)
async def test_calls_that_wait_for_something_leave_room_for_others_after_a_while(
    our_ends: Ends, probe: Probe
) -> None:
    client = await serve(our_ends, probe.handlers())
    begun = 0
    for begin in (asking, silent):
        client.send(*(begin(1 + 2 * one) for one in range(begun, offered(client))))
        begun = offered(client)
        while offered(client) == begun:
            await client.receive()
            client.send(h.frame(h.PING, h.ACK, 0, bytes(8)))
    assert offered(client) >= begun + CALLS_FREE_MIN
    await assert_served(client, 1 + 2 * begun)
    await client.close()


@within(120)
async def test_a_stream_that_is_too_many_is_told_so_and_no_other_is_harmed(
    our_ends: Ends, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serve(our_ends, probe.handlers())
    begun = 0
    while begun <= KEPT_MAX:
        more = min(offered(client) - begun, KEPT_MAX + 1 - begun)
        for one in range(begun, begun + more):
            client.send(
                h.request(1 + 2 * one, path("Converse")), h.frame(h.DATA, 0, 1 + 2 * one, h.message(b"x"))
            )
        begun += more
        await client.pong()
        # Behind the answers of those that stay now.
        await asyncio.sleep(0.05)
    end = await client.end_of(1 + 2 * KEPT_MAX)
    fields = Decoder()
    said = [dict(fields.decode(one.payload, raw=True)) for one in client.frames if one.kind == h.HEADERS]
    assert end is not None and said[-1][b"grpc-status"] == b"8"
    assert [text for text in caplog.messages if "limit=kept_calls_max" in text]
    await assert_served(client, 3 + 2 * KEPT_MAX)
    await client.close()


class Stuck(Intake):
    """Lets no call begin, until it may."""

    def __init__(self) -> None:
        super().__init__(lambda limit, text: None)
        self.waiting: list[Callable[[], None]] = []
        self.is_stuck = True

    def may_begin(self) -> bool:
        return not self.is_stuck

    def wait(self, go_on: Callable[[], None]) -> None:
        self.waiting.append(go_on)

    def go_on(self) -> None:
        self.is_stuck = False
        self.waiting.pop()()


@within(60)
async def test_a_client_whose_calls_wait_to_be_looked_at_is_not_given_up() -> None:
    """What it sends meanwhile, answers to pings too, waits behind them."""
    intake, lost = Stuck(), list[str]()
    begun = asyncio.Event()

    def begin(_connection: Connection, _number: int) -> Any:
        begun.set()
        raise ValueError("enough")

    def accept() -> Connection:
        return Connection(begin, lambda _: None, lambda _, why: lost.append(why), 0.02, intake)

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    client = await h.RawClient.connect(server.sockets[0].getsockname()[1])
    client.send(h.call(1, path("Wait"), b""))
    await asyncio.sleep(1.0)
    lost_meanwhile = list(lost)
    intake.go_on()
    await client.close()
    server.close()
    assert not lost_meanwhile and begun.is_set()


async def test_calls_are_begun_a_few_in_a_turn_and_in_the_order_in_which_they_came() -> None:
    intake, begun = Intake(lambda limit, text: None), list[int]()

    def begin(name: int, left: int) -> None:
        while left and intake.may_begin():
            begun.append(name)
            left -= 1
        if left:
            intake.wait(lambda: begin(name, left))

    for name in range(4):
        begin(name, CALLS_A_TURN)
    assert begun == [0] * CALLS_A_TURN
    for turns in range(2, 5):
        await asyncio.sleep(0)
        assert len(begun) == turns * CALLS_A_TURN
    assert begun == sorted(begun)


def test_a_peer_that_gives_up_calls_again_and_again_is_heard_more_slowly() -> None:
    peer = Peer(now=0.0)
    assert {peer.give_up(0.0) for _ in range(RESETS_BURST)} == {0.0}
    assert peer.give_up(0.0) == pytest.approx(1 / RESETS_A_SECOND)
    assert peer.give_up(1.0) == 0.0
    assert not peer.is_as_new(1.0)
    assert peer.is_as_new(1.0 + RESETS_BURST / RESETS_A_SECOND)


@within(60)
async def test_calls_given_up_on_several_connections_are_counted_together(
    our_ends: Ends, probe: Probe
) -> None:
    """Each stays below what a connection may give up, and all together do not."""
    served = await our_ends.serve(probe.handlers())
    clients = [await h.RawClient.connect(int(served.address.rpartition(":")[2])) for _ in range(3)]
    each = 2 * RESETS_BURST // len(clients)
    begun_at = asyncio.get_running_loop().time()
    for client in clients:
        for number in range(1, 2 * each, 2):
            client.send(
                h.call(number, path("Wait"), b""), h.frame(h.RST_STREAM, 0, number, struct.pack(">I", 8))
            )
    await asyncio.gather(*(client.pong() for client in clients))
    seconds = asyncio.get_running_loop().time() - begun_at
    assert seconds > 0.9 * (len(clients) * each - RESETS_BURST) / RESETS_A_SECOND
    for client in clients:
        await client.close()


@within(60)
async def test_an_address_is_one_peer_until_nothing_is_to_be_remembered_of_it() -> None:
    intake = Intake(lambda limit, text: None)
    peer = intake.peer("10.0.0.1")
    for _ in range(RESETS_BURST):
        peer.give_up(asyncio.get_running_loop().time())
    for number in range(1_000):
        intake.peer(f"10.1.{number // 250}.{number % 250}")
    assert intake.peer("10.0.0.1") is peer
    assert len(intake._peers) < 600
