"""What waits in a proxy takes about as much memory as its limits say, however small the messages are.

Memory is what Python has allocated (tracemalloc) and what the C library has, where the engine keeps deliveries.
"""

import asyncio
import ctypes
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.begun_room import ALWAYS_BYTES
from services.proxy.client_deliveries import WAITING_OUTCOME_BYTES
from services.proxy.incoming_link import OVERHEAD_BYTES, PART_BYTES
from services.proxy.link_owner import UNSETTLED_ALWAYS_BYTES
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits, ProxySettings
from services.proxy.traffic import End
from services.proxy.worker import Worker
from tests.amqp import codec
from tests.amqp.codec import AMQP_HEADER, SASL_HEADER, composite, performative
from tests.amqp.listener_rig import FakeTransport, ListenerRig
from tests.amqp.raw_client import attach_coordinator, attach_receiver, attach_sender, begin, credit
from tests.amqp.stub_brokers import EPOCH, StubBatches, StubSession, StubSet, stub_nodes

MIB = 1024 * 1024
ROOM = 2 * MIB
PLENTY = 1 << 40
MANY = 1_000_000
"""More than there is room for."""
STEP = 100
"""Messages at once."""
SOME_BYTES = MIB // 4
"""Of a connection itself, and of what allocators have for others."""


class Unanswered(StubBatches):
    """Answers nothing, and keeps it as brokers' sessions do."""

    def __init__(self) -> None:
        self.kept: list[tuple[Sequence[Any], Confirmation]] = []

    def publish(self, *given: Any) -> Confirmation:
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        self.kept.append((given[2], confirmation))
        return confirmation


class Feed(StubSet):
    """Gives what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0
        self.returned = 0

    def consume(self, port: Any, *arguments: Any, **options: Any) -> int:
        self.port = port
        return super().consume(port, *arguments, **options)

    def _deliver(self, consumer: int, count: int) -> None: ...

    def give_one(self, number: int, body: bytes = b"xx") -> None:
        self.given += 1
        section = b"\x00\x53\x70\x45\x00\x53\x75\xb0" + len(body).to_bytes(4, "big")
        self.port.deliver(
            "queue", EPOCH, (DeliveredMessage(QueuePosition(1_000 + number), section, body, 0, 0, True),)
        )

    def give(self) -> None:
        first = self.given + 1
        self.given += STEP
        section = b"\x00\x53\x70\x45\x00\x53\x75\xa0\x02"
        self.port.deliver(
            "queue",
            EPOCH,
            tuple(
                DeliveredMessage(
                    QueuePosition(1_000 + n), bytes(bytearray(section)), b"%2d" % (n % 100), 0, 0, True
                )
                for n in range(first, first + STEP)
            ),
        )


class _Allocated(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


_library = ctypes.CDLL(None)
_library.mallinfo2.restype = _Allocated


def memory() -> int:
    """Bytes that are in use."""
    gc.collect()
    allocated = _library.mallinfo2()
    noted = tracemalloc.get_tracemalloc_memory()
    return tracemalloc.get_traced_memory()[0] - noted + int(allocated.uordblks) + int(allocated.hblkhd)


class Client:
    """One connection to the listener, without a socket."""

    def __init__(self, limits: ProxyLimits, window: int) -> None:
        self.session = StubSession()
        self.batches = self.session.batches = Unanswered()
        self.set = self.session.set = Feed()
        rig = ListenerRig(ProxySettings(brokers=("127.0.0.1:1",), limits=limits))
        rig.worker.nodes = stub_nodes(self.session)
        self.worker: Worker = rig.worker
        self.transport = FakeTransport()
        self._socket = rig.worker.socket(None)
        self.transport.protocol = self._socket
        self._socket.connection_made(self.transport)
        opened = performative("open", container_id="rooms")
        login = SASL_HEADER + performative("sasl_init", mechanism=codec.Symbol("ANONYMOUS"))
        self._window = window
        self.say(login + AMQP_HEADER + opened + begin(incoming_window=window))

    def say(self, data: bytes) -> None:
        self._socket.data_received(data)

    async def attach(self, link: bytes, count: int = 0) -> None:
        """Attaches a link, and gives credit for so many messages."""
        self.say(link)
        for _ in range(30):
            await asyncio.sleep(0)
        if count:
            self.say(credit(0, count, incoming_window=self._window))

    async def leave(self) -> None:
        self.transport.close()
        while self.worker.connections or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


@pytest.fixture
async def traced() -> AsyncIterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def transfers(first: int) -> bytes:
    return b"".join(
        performative(
            "transfer",
            0,
            codec.message(b"%2d" % (n % 100)),
            handle=0,
            delivery_id=n,
            delivery_tag=codec.binary(b"%d" % n),
        )
        for n in range(first, first + STEP)
    )


async def test_messages_that_no_broker_answers(traced: None) -> None:
    client = Client(ProxyLimits(link_credit=MANY, unanswered_bytes_max=2 * ROOM), MANY)
    await client.attach(attach_sender("s", "queue", 0))
    before, sent = memory(), 0
    while client.transport.is_read:
        client.say(transfers(sent))
        sent += STEP
        await asyncio.sleep(0)
    assert memory() - before < 2 * ROOM + SOME_BYTES
    assert sent > ROOM // MESSAGE_BYTES // 2
    for _, confirmation in client.batches.kept:
        confirmation.set_result(1)
    await client.leave()


UNLIMITED = dict.fromkeys(
    (
        "output_bytes_max",
        "connection_output_bytes_max",
        "outputs_bytes_max",
        "waiting_bytes_max",
        "deliveries_bytes_max",
        "unsettled_bytes_max",
    ),
    PLENTY,
)


def is_held_up(client: Client) -> bool:
    """Something waits that its client has credit for."""
    return client.worker.traffic.messages_out < client.set.given


def is_returned(client: Client) -> bool:
    """Something that came went back."""
    return len(client.worker.returning) > 0


WAYS: dict[str, tuple[str, int, int, int, Callable[[Client], bool]]] = {
    "that wait for credit": ("waiting_bytes_max", 0, MANY, 0, is_returned),
    "that are sent and not taken": ("output_bytes_max", MANY, 0, 0, is_held_up),
    "that are sent settled and not taken": ("output_bytes_max", MANY, 0, 1, is_held_up),
    "that are taken and not settled": ("unsettled_bytes_max", MANY, MANY, 0, is_held_up),
}
"""Limit, credit, window of the session, snd-settle-mode, and what says that the limit is reached."""


@pytest.mark.parametrize("way", WAYS)
async def test_messages(way: str, traced: None) -> None:
    limit, count, window, mode, is_full = WAYS[way]
    limits = ProxyLimits(delivery_credit_max=MANY, delivery_bytes_max=PLENTY, **{**UNLIMITED, limit: ROOM})
    client = Client(limits, window)
    await client.attach(attach_receiver("r", "queue", 0, snd_settle_mode=codec.ubyte(mode)), count)
    before = memory()
    while not is_full(client):
        client.set.give()
        await asyncio.sleep(0)
        assert client.set.given < MANY, "there is no limit"
    assert memory() - before < 2 * ROOM + SOME_BYTES
    assert client.set.given > ROOM // MESSAGE_BYTES // 2
    await client.leave()
    for room in client.worker.outputs, client.worker.deliveries, client.worker.unsettled:
        assert room.left in (PLENTY, ROOM), "it is free again"


async def filled(mode: int = 0) -> Client:
    """One that has as many messages that it has not settled as it may, and more that wait."""
    limits = ProxyLimits(delivery_credit_max=MANY, delivery_bytes_max=PLENTY, unsettled_bytes_max=ROOM)
    client = Client(limits, MANY)
    await client.attach(attach_receiver("r", "queue", 0, snd_settle_mode=codec.ubyte(mode)), MANY)
    while not is_held_up(client) and client.set.given < MANY // 100:
        client.set.give()
        await asyncio.sleep(0)
    return client


async def test_whoever_settles_some_is_sent_more(caplog: pytest.LogCaptureFixture) -> None:
    client = await filled()
    sent = client.worker.traffic.messages_out
    assert ROOM // MESSAGE_BYTES // 2 <= sent <= ROOM // MESSAGE_BYTES // 2 + STEP
    (line,) = [line for line in caplog.messages if "limit=unsettled_bytes_max " in line]
    assert f"{sent} deliveries are not settled" in line
    client.say(
        performative(
            "disposition", role=True, first=0, last=sent // 2, settled=True, state=composite("accepted")
        )
    )
    await asyncio.sleep(0)
    assert client.worker.traffic.messages_out == client.set.given
    await client.leave()
    assert client.worker.unsettled.left == ROOM


async def test_what_is_settled_is_room_for_the_other_links_at_once() -> None:
    client = Client(ProxyLimits(unsettled_bytes_max=ROOM), MANY)
    await client.attach(attach_receiver("r", "queue"), MANY)
    client.set.give()
    await asyncio.sleep(0)
    assert client.worker.unsettled.left == ROOM - STEP * MESSAGE_BYTES
    client.say(
        performative(
            "disposition", role=True, first=0, last=STEP - 1, settled=True, state=composite("released")
        )
    )
    assert client.worker.unsettled.left == ROOM
    await client.leave()


async def test_what_we_have_settled_is_room_for_the_other_links_at_once() -> None:
    client = Client(ProxyLimits(unsettled_bytes_max=ROOM), MANY)
    await client.attach(attach_receiver("r", "queue"), MANY)
    client.set.give()
    await asyncio.sleep(0)
    client.say(performative("disposition", role=True, first=0, last=STEP - 1, state=composite("released")))
    assert client.worker.unsettled.left < ROOM, "the client waits for that"
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.worker.unsettled.left == ROOM
    await client.leave()


@pytest.mark.parametrize("way", ["transaction", "no transaction", "browser", "before us"])
async def test_what_a_client_has_settled_is_room_for_the_other_links_at_once(way: str) -> None:
    """Also what the broker hears nothing of, or not yet."""
    client = Client(ProxyLimits(unsettled_bytes_max=ROOM), MANY)
    source: dict[str, Any] = {"address": "queue"}
    if way == "browser":
        source["distribution_mode"] = codec.symbol("copy")
    await client.attach(attach_receiver("r", "queue", source=composite("source", **source)), MANY)
    name = await in_transaction(client) if way == "transaction" else b"none"
    client.set.give()
    await asyncio.sleep(0)
    full = client.worker.unsettled.left
    assert full <= ROOM - STEP * MESSAGE_BYTES
    state = composite("released")
    if "transaction" in way:
        state = composite("transactional_state", txn_id=codec.binary(name), outcome=state)
    said = {"role": True, "first": 0, "last": STEP - 1, "state": state}
    if way == "before us":
        client.say(performative("disposition", **said))
    client.say(performative("disposition", **said, settled=True))
    waiting = STEP * WAITING_OUTCOME_BYTES if way == "transaction" else 0
    assert client.worker.unsettled.left == ROOM - waiting
    await client.leave()
    assert client.worker.unsettled.left == ROOM


async def test_a_client_is_sent_some_however_much_others_have_not_settled() -> None:
    """It may settle them together, or take them in one transaction."""
    client = Client(ProxyLimits(unsettled_bytes_max=ROOM), MANY)
    await client.attach(attach_receiver("r", "queue"), MANY)
    client.worker.unsettled.left -= ROOM
    few = UNSETTLED_ALWAYS_BYTES // MESSAGE_BYTES
    for number in range(2 * few):
        client.set.give_one(number)
        await asyncio.sleep(0)
    assert few <= client.worker.traffic.messages_out <= few + 1
    await client.leave()
    assert client.worker.unsettled.left == 0


async def in_transaction(client: Client) -> bytes:
    """Declares one; answers its name."""
    await client.attach(attach_coordinator(1))
    declare = b"\x00\x53\x77" + composite("declare")
    client.say(performative("transfer", 0, declare, handle=1, delivery_id=0, delivery_tag=codec.binary(b"0")))
    (connection,) = client.worker.connections
    while not connection.transactions:
        await asyncio.sleep(0)
    return (1).to_bytes(8, "big")


OUTCOMES = {
    "released": composite("released"),
    "rejected": composite("rejected"),
    "modified": composite(
        "modified", message_annotations=codec.mapping(codec.symbol("x-opt"), codec.string("x" * 3_000))
    ),
}


@pytest.mark.parametrize("is_settled", [False, True], ids=["", "settled"])
@pytest.mark.parametrize("name", OUTCOMES)
async def test_outcomes_that_wait_for_the_end_of_a_transaction(
    name: str, is_settled: bool, traced: None
) -> None:
    client = Client(ProxyLimits(unsettled_bytes_max=4 * ROOM), MANY)
    await client.attach(attach_receiver("r", "queue", 0), 4 * MANY)
    state = composite(
        "transactional_state", txn_id=codec.binary(await in_transaction(client)), outcome=OUTCOMES[name]
    )
    before, said = memory(), 0
    while not is_held_up(client):
        client.set.give()
        await asyncio.sleep(0)
        last = client.worker.traffic.messages_out - 1
        client.say(
            performative("disposition", role=True, first=said, last=last, settled=is_settled, state=state)
        )
        for _ in range(5):
            await asyncio.sleep(0)
        said = last + 1
        assert said < MANY // 100, "there is no limit"
    assert memory() - before < 4 * ROOM + SOME_BYTES
    await client.leave()
    assert client.worker.unsettled.left == 4 * ROOM


@pytest.mark.parametrize("is_inside", [False, True], ids=["", "transaction"])
async def test_what_a_client_has_settled_amid_a_big_message_counts_no_more_when_its_link_ends(
    is_inside: bool,
) -> None:
    client = Client(ProxyLimits(output_bytes_max=MIB // 4), 1)
    await client.attach(attach_receiver("r", "queue"), 10)
    client.set.give_one(0, bytes(3 * MIB))
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.worker.connections[0]._owner.rests.held, "the rest waits for room"
    state = composite("released")
    if is_inside:
        state = composite("transactional_state", txn_id=codec.binary(b"none"), outcome=state)
    client.say(performative("disposition", role=True, first=0, settled=True, state=state))
    client.say(performative("detach", handle=0, closed=True))
    await client.leave()
    assert client.worker.unsettled.left == ProxyLimits().unsettled_bytes_max


async def test_what_is_sent_settled_needs_no_such_room() -> None:
    client = await filled(mode=1)
    assert not is_held_up(client) and client.worker.unsettled.left == ROOM
    await client.leave()


async def test_what_a_link_has_left_counts_until_its_client_has_detached_it() -> None:
    """The engine keeps it until then."""
    client = await filled()
    left = client.worker.unsettled.left
    client.set.port.stop(ErrorCode.NOT_FOUND, "it was deleted")
    await asyncio.sleep(0)
    assert client.worker.unsettled.left == left
    client.say(performative("detach", handle=0, closed=True))
    while client.worker.unsettled.left != ROOM:
        await asyncio.sleep(0)
    await client.leave()


async def test_parts_of_messages_of_some_bytes_each(traced: None) -> None:
    """As many as reads are, with nothing else in them."""
    client = Client(ProxyLimits(partial_bytes_max=ROOM // 4), MANY)
    await client.attach(attach_sender("s", "queue", 0))
    (connection,) = client.worker.connections
    part = performative(
        "transfer", 0, b"no", handle=0, delivery_id=0, delivery_tag=codec.binary(b"0"), more=True
    )
    before = most = memory()
    while connection.links:
        for _ in range(STEP):
            client.say(part)
        most = max(most, memory())
    assert most - before < ROOM // 2 + SOME_BYTES
    await client.leave()


@pytest.mark.parametrize("frame_bytes", [100_000, 4_000])
async def test_two_of_the_largest_messages_may_come_at_once(
    frame_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ProxyLimits()
    client = Client(limits, MANY)
    for number in range(2):
        await client.attach(attach_sender(f"s{number}", "queue", number))
    (connection,) = client.worker.connections
    size = limits.message_bytes_max
    message = b"\x00\x53\x75\xb0" + (size - 8).to_bytes(4, "big") + bytes(size - 8)
    for at in range(0, size, frame_bytes):
        for number in range(2):
            fields = {"handle": number, "delivery_id": number, "delivery_tag": codec.binary(b"%d" % number)}
            is_last = at + frame_bytes >= size
            part = message[at : at + frame_bytes]
            client.say(performative("transfer", 0, part, **fields, more=not is_last))
    while len(client.batches.kept) < 2 and connection.links == 2:
        await asyncio.sleep(0)
    assert connection.links == 2 and not [line for line in caplog.messages if "limit=" in line]
    for _, confirmation in client.batches.kept:
        confirmation.set_result(1)
    await client.leave()


def test_two_of_the_largest_messages_have_room_in_the_smallest_frames() -> None:
    limits, fields_bytes = ProxyLimits(), 60
    message = limits.message_bytes_max + OVERHEAD_BYTES
    parts = -(-message // (512 - fields_bytes))
    assert 2 * (message + parts * PART_BYTES) <= limits.partial_bytes_max


DENSE = codec.sequence(*[codec.NULL] * 20_000)
LONG = codec.string(50_000 * "x")
SAID = {
    "modified": lambda said: composite(
        "modified", message_annotations=codec.mapping(codec.symbol("x-opt"), said)
    ),
    "rejected": lambda said: composite("rejected", error=composite("error", description=said)),
    "unknown": lambda said: codec.described(codec.ulong(0x99), said),
}


@pytest.mark.parametrize("code", [0x25, 0x27, 0x34, 0x99])
@pytest.mark.parametrize("size", [3_000, 20_000])
@pytest.mark.parametrize("count", [0xFFFF_FFFF, 1], ids=["too many", "unreadable"])
async def test_what_a_client_says_of_many_deliveries_and_nobody_can_read(
    code: int, size: int, count: int, traced: None
) -> None:
    """A list that says to have more values than bytes, or has a value of no type."""
    values = (codec.NULL if count > 1 else b"\x3f") * size
    state = b"\x00\x53%c\xd0" % code + (4 + size).to_bytes(4, "big") + count.to_bytes(4, "big") + values
    await say_of_many(state)


@pytest.mark.parametrize("said", [DENSE, LONG], ids=["dense", "long"])
@pytest.mark.parametrize("name", SAID)
async def test_what_a_client_says_of_many_deliveries_at_once(name: str, said: bytes, traced: None) -> None:
    """The engine would keep a copy for each."""
    await say_of_many(SAID[name](said))


async def say_of_many(state: bytes) -> None:
    """It is no more memory than others take."""
    count = 10 * STEP
    client = Client(ProxyLimits(), MANY)
    await client.attach(attach_receiver("r", "queue"), count)
    for _ in range(count // STEP):
        client.set.give()
        await asyncio.sleep(0)
    assert client.worker.traffic.messages_out == count
    before = memory()
    client.say(performative("disposition", role=True, first=0, last=count - 1, state=state))
    for _ in range(20):
        await asyncio.sleep(0)
    assert memory() - before < 2 * MIB
    await client.leave()


@pytest.mark.parametrize("is_inside", [False, True], ids=["", "transaction"])
@pytest.mark.parametrize("what", ["dense", "long", "some", "tag"])
async def test_what_a_client_says_of_each_message_that_it_sends(
    what: str, is_inside: bool, traced: None
) -> None:
    """The engine would keep it until the message is answered, and what it takes to read it for ever."""
    client = Client(ProxyLimits(link_credit=MANY), MANY)
    await client.attach(attach_sender("s", "queue", 0))
    transaction = await in_transaction(client) if is_inside else b""
    values = {"dense": DENSE, "long": LONG, "some": codec.sequence(*[codec.NULL] * 200)}
    said = SAID["rejected"](values[what]) if what in values else codec.NULL
    if is_inside:
        said = composite("transactional_state", txn_id=codec.binary(transaction), outcome=said)
    tag = b"t" * 20_000 if what == "tag" else b""
    before, count = memory(), 2 * STEP
    for number in range(1, count + 1):
        fields = {"delivery_id": number, "delivery_tag": codec.binary(b"%d" % number + tag), "state": said}
        client.say(performative("transfer", 0, codec.message(b"xx"), handle=0, **fields))
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert memory() - before < count * 4 * MESSAGE_BYTES + SOME_BYTES
    (connection,) = client.worker.connections
    assert not connection._is_closed and connection.links == 1 + is_inside
    for _, confirmation in client.batches.kept:
        confirmation.set_result(1)
    await client.leave()


async def test_a_post_with_a_transaction_s_name_that_is_too_long_is_not_one_outside_of_all() -> None:
    client = Client(ProxyLimits(), MANY)
    await client.attach(attach_sender("s", "queue", 0))
    said = composite("transactional_state", txn_id=codec.binary(b"1" * 100))
    fields = {"delivery_id": 0, "delivery_tag": codec.binary(b"0"), "state": said}
    client.say(performative("transfer", 0, codec.message(b"xx"), handle=0, **fields))
    await asyncio.sleep(0)
    assert client.batches.kept == []
    assert client.worker.traffic.messages_in[End.REFUSED] == 1
    await client.leave()


TEXTS = codec.mapping(
    *[value for n in range(1_500) for value in (codec.symbol(f"k{n:04}"), codec.string("x" * 20))]
)
BEGUN: dict[str, Callable[[int], bytes]] = {
    "links": lambda n: attach_sender(f"s{n}", "queue", n),
    "receivers": lambda n: attach_receiver(f"r{n}", "queue", n),
    "refused links": lambda n: attach_receiver(f"r{n}", "", n),
    "long names": lambda n: attach_sender(f"s{n}" + "x" * 50_000, "queue", n),
    "properties": lambda n: attach_sender(f"s{n}", "queue", n, properties=TEXTS),
    "dense properties": lambda n: attach_sender(
        f"s{n}", "queue", n, properties=codec.mapping(codec.symbol("k"), DENSE)
    ),
    "filters": lambda n: attach_receiver(
        f"r{n}", "queue", n, source=composite("source", address="queue", filter=TEXTS)
    ),
    "sessions": lambda n: begin(n + 1, properties=TEXTS),
}


@pytest.mark.parametrize("what", BEGUN)
async def test_what_a_client_begins(what: str, traced: None, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(ProxyLimits(begun_bytes_max=2 * ROOM), MANY)
    (connection,) = client.worker.connections
    before = most = memory()
    for number in range(200 if what == "sessions" else 4_000):
        client.say(BEGUN[what](number))
        if number % 50 == 0 or client.worker.begun.left < ROOM:
            for _ in range(4):
                await asyncio.sleep(0)
            most = max(most, memory())
        if connection._is_closed:
            break
    assert connection._is_closed
    assert most - before < 2 * ROOM + SOME_BYTES
    assert len([line for line in caplog.messages if "limit=begun_bytes_max " in line]) == 1
    await client.leave()
    assert client.worker.begun.left == 2 * ROOM


async def test_what_a_client_has_ended_counts_no_more() -> None:
    client = Client(ProxyLimits(begun_bytes_max=8 * ROOM), MANY)
    left = client.worker.begun.left
    for number in range(100):
        client.say(BEGUN["long names"](number))
        client.say(performative("detach", handle=number, closed=True))
        client.say(begin(1) + attach_sender("s", "queue", 0, 1) + performative("end", 1))
        for _ in range(8):
            await asyncio.sleep(0)
    assert client.worker.begun.left == left
    assert client.worker.connections and not client.worker.connections[0]._is_closed
    await client.leave()


def is_closed(client: Client) -> bool:
    """As it is now."""
    return client.worker.connections[0]._is_closed


async def test_a_client_that_has_begun_little_stays_however_much_others_have() -> None:
    limits = ProxyLimits(begun_bytes_max=ALWAYS_BYTES)
    client = Client(limits, MANY)
    for number in range(10):
        client.say(BEGUN["links"](number))
    assert not is_closed(client)
    client.say(BEGUN["links"](10))
    assert is_closed(client)
    await client.leave()


async def test_a_client_that_ends_something_stays_though_others_have_begun_more_meanwhile() -> None:
    client = Client(ProxyLimits(begun_bytes_max=8 * ROOM), MANY)
    for number in range(30):
        client.say(BEGUN["links"](number))
    client.worker.begun.left -= 8 * ROOM
    client.say(performative("detach", handle=3, closed=True))
    assert not is_closed(client)
    client.say(BEGUN["links"](3))
    assert is_closed(client)
    await client.leave()
    assert client.worker.begun.left == 0
