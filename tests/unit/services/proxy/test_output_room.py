"""What a worker holds of messages that it has sent and clients have not taken is bounded, and whoever takes his goes on."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from proton import Connection
from proton import Link as ProtonLink

from lockstep.core.ids import QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle
from services.proxy.listener import ClientSocket
from services.proxy.output_room import ALWAYS_BYTES, OutputRoom
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits
from services.proxy.worker_room import WorkerRoom
from tests.amqp.codec import performative, ubyte
from tests.amqp.raw_client import RawClient, attach_receiver, begin, credit
from tests.amqp.stub_brokers import EPOCH, StubSession, StubSet
from tests.amqp.stub_proxy import StubProxy, serving

KIB, MIB = 1024, 1024 * 1024
SIZE = 10_000
COUNT = 150
"""Messages that each consumer gets if it takes them."""
PLENTY = 100_000
LIMITS = ProxyLimits(
    output_bytes_max=MIB, connection_output_bytes_max=2 * MIB, outputs_bytes_max=4 * MIB, hold_seconds=60
)


# --- the room alone ---


class Wire:
    """Has as much to write as the test says."""

    def __init__(self) -> None:
        self.waiting = 0

    def waiting_bytes(self) -> int:
        return self.waiting


class Link:
    """On a session of its own."""

    leaves_unsent = False

    def __init__(self, connection: Connection) -> None:
        self.sender = connection.session().sender("s")

    @property
    def handle(self) -> Handle:
        return path.handle_of(self.sender)

    @property
    def session(self) -> Handle:
        return path.session_of(self.handle)

    @property
    def unsent(self) -> int:
        return path.unsent(self.handle)

    def resume(self) -> None:
        """It is not held up."""


class Client:
    """A connection with its room; its engine has no transport, so it keeps what it is given."""

    def __init__(self, worker: WorkerRoom, limits: ProxyLimits = LIMITS) -> None:
        self.wire = Wire()
        self.refusals: list[str] = []
        self.room = OutputRoom(self.wire, worker, limits, lambda limit, _: self.refusals.append(limit))
        self._connection = Connection()

    def link(self) -> Link:
        """On a session of its own."""
        return Link(self._connection)

    def fill(self, link: Link) -> int:
        """Sends all that there is room for, in one message; answers how much that was."""
        filled = 0
        while (left := self.room.left(link.handle)) > 0:
            path.send(link.handle, b"1", bytes(max(left - MESSAGE_BYTES, 0)), False)
            self.room.given(link, left)
            filled += left
        return filled


def test_a_session_has_no_more_of_a_connection_s_room_than_it_leaves() -> None:
    worker = WorkerRoom(1 << 30)
    client = Client(worker)
    links = [client.link() for _ in range(4)]
    assert [client.fill(link) for link in links] == [MIB, MIB // 2, MIB // 4, MIB // 8]
    assert client.refusals == ["connection_output_bytes_max"] * 3, "the first has what a session may have"
    assert worker.left == (1 << 30) - client.room.held


def test_a_connection_has_no_more_of_its_worker_s_room_than_it_leaves_but_some_in_any_case() -> None:
    worker = WorkerRoom(4 * MIB)
    clients = [Client(worker, ProxyLimits(output_bytes_max=8 * MIB)) for _ in range(12)]
    filled = [client.fill(client.link()) for client in clients]
    assert filled[:3] == [2 * MIB, MIB, MIB // 2]
    assert filled[-4:] == [ALWAYS_BYTES] * 4
    assert clients[-1].refusals == ["outputs_bytes_max"]
    assert worker.left < 0


def test_what_waits_for_the_socket_counts_and_whoever_takes_it_goes_on() -> None:
    worker = WorkerRoom(0)
    client = Client(worker)
    link = client.link().handle
    client.wire.waiting = ALWAYS_BYTES
    assert client.room.left(link) <= 0 and worker.left == -ALWAYS_BYTES
    client.wire.waiting = ALWAYS_BYTES - 1
    assert client.room.left(link) == 1
    client.wire.waiting = 0
    client.room.resume()
    assert worker.left == 0


def test_another_session_goes_on_beside_one_that_takes_nothing() -> None:
    client = Client(WorkerRoom(1 << 30))
    stalled, taking = client.link(), client.link()
    client.fill(stalled)
    assert client.room.left(taking.handle) == MIB // 2


def test_the_room_is_free_when_a_session_ends_and_when_the_connection_does() -> None:
    worker = WorkerRoom(1 << 30)
    client = Client(worker)
    link, other = client.link(), client.link()
    client.fill(link)
    held = client.fill(other)
    client.room.forget_session(link.session)
    client.room.resume()
    assert client.room.held == held
    client.wire.waiting = 100
    client.room.close()
    assert client.room.left(other.handle) == 0
    client.room.release()
    assert (client.room.held, worker.left) == (0, 1 << 30)


def test_a_worker_has_room_for_some_connections_at_their_limit() -> None:
    limits = ProxyLimits()
    assert limits.outputs_bytes_max >= 16 * limits.connection_output_bytes_max
    assert limits.connection_output_bytes_max >= 4 * limits.output_bytes_max


# --- clients ---


class Queue(StubSet):
    """Each consumer gets `COUNT` messages."""

    def consume(self, *arguments: object, **options: object) -> int:
        consumer = super().consume(*arguments, **options)  # type: ignore[arg-type]
        self._left[consumer] = COUNT
        return consumer

    def _deliver(self, consumer: int, count: int) -> None:
        port = self._consumers.get(consumer)
        count = min(count, self._left.get(consumer, 0))
        if port is None or not count:
            return
        first = COUNT - self._left[consumer] + 1
        self._left[consumer] -= count
        port.deliver("queue", EPOCH, tuple(message(first + place) for place in range(count)))


BODY = bytes(SIZE)


def message(number: int) -> DeliveredMessage:
    section = b"\x00\x53\x75\xb0" + SIZE.to_bytes(4, "big")
    return DeliveredMessage(QueuePosition(number), b"\x00\x53\x70\x45" + section, BODY, 0, 0, True)


@pytest.fixture
async def proxy() -> AsyncIterator[StubProxy]:
    session = StubSession()
    session.set = Queue()
    async with serving(LIMITS, session) as served:
        yield served


async def receiving(proxy: StubProxy, sessions: int, window: int) -> RawClient:
    """A client with a receiver in each of its sessions, which have a window of so many frames."""
    client = await RawClient.opened(proxy.address, max_frame_size=64 * KIB)
    for channel in range(sessions):
        await client.begin(channel, incoming_window=window)
        client.send(attach_receiver("r", "queue", 0, channel))
        await client.expect("attach")
    client.send(*[credit(0, COUNT, channel=channel, incoming_window=window) for channel in range(sessions)])
    return client


async def settled(proxy: StubProxy) -> int:
    """Waits until no more is sent; answers how many bytes were."""
    before = -1
    while proxy.worker.traffic.messages_out != before:
        before = proxy.worker.traffic.messages_out
        await asyncio.sleep(0.3)
    return before * SIZE


def lines(caplog: pytest.LogCaptureFixture, limit: str) -> list[str]:
    """Of the log, about that limit."""
    return [line for line in caplog.messages if f"limit={limit} " in line]


async def test_sessions_without_a_window_have_together_what_a_connection_may_have(
    proxy: StubProxy, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = 8
    async with await receiving(proxy, sessions, 0) as client:
        sent = await settled(proxy)
        assert MIB < sent <= LIMITS.connection_output_bytes_max + sessions * SIZE
        assert len(lines(caplog, "connection_output_bytes_max")) == 1
        opened = [
            performative(
                "flow",
                channel,
                next_incoming_id=0,
                incoming_window=PLENTY,
                next_outgoing_id=0,
                outgoing_window=PLENTY,
            )
            for channel in range(sessions)
        ]
        client.send(*opened)
        for _ in range(sessions * COUNT):
            await client.expect("transfer")
        await settled(proxy)
        assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max


async def test_clients_that_take_nothing_have_together_what_a_worker_may_have_and_others_go_on(
    proxy: StubProxy, caplog: pytest.LogCaptureFixture
) -> None:
    count = 12
    stalled = [await receiving(proxy, 2, 0) for _ in range(count)]
    sent = await settled(proxy)
    assert 2 * MIB < sent <= LIMITS.outputs_bytes_max + count * (ALWAYS_BYTES + 2 * SIZE)
    assert len(lines(caplog, "outputs_bytes_max")) == 1
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with await receiving(proxy, 1, PLENTY) as client:
        for _ in range(COUNT):
            await client.expect("transfer")
    assert loop.time() - began < 5, "it does not wait for others"
    for one in stalled:
        one.abort()
    async with asyncio.timeout(10):
        while proxy.worker.connections:
            await asyncio.sleep(0.01)
    assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max


async def test_a_session_that_ends_and_its_links_leave_their_room(proxy: StubProxy) -> None:
    async with await receiving(proxy, 1, 0) as client:
        await settled(proxy)
        for _ in range(3):
            client.say("end")
            await client.expect("end")
            assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max
            client.send(begin(incoming_window=0), attach_receiver("r", "queue"))
            await client.expect("attach")
            client.send(credit(0, COUNT, incoming_window=0))
            await settled(proxy)
            assert proxy.worker.outputs.left < LIMITS.outputs_bytes_max - MIB // 2


def look(proxy: StubProxy) -> None:
    """What the worker does once a second."""
    for _ in proxy.worker.give_back_late(asyncio.get_running_loop().time()):
        pass


async def receive_and_leave(client: RawClient, proxy: StubProxy, name: str, count: int, mode: int) -> None:
    """A receiver that ends before its client's window lets anything through."""
    client.send(attach_receiver(name, "queue", snd_settle_mode=ubyte(mode)))
    await client.expect("attach")
    client.send(credit(0, count, incoming_window=0))
    await settled(proxy)
    client.say("detach", handle=0, closed=True)
    await client.expect("detach")


async def test_a_connection_ends_whose_room_is_taken_by_what_ended_links_have_left(
    proxy: StubProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Where that was settled at once, the engine has it until their session ends, and never sends it."""
    async with await RawClient.begun(proxy.address, incoming_window=0) as client:
        await receive_and_leave(client, proxy, "r1", COUNT, ProtonLink.SND_SETTLED)
        client.send(attach_receiver("r2", "queue"))
        await client.expect("attach")
        look(proxy)
        client.send(credit(0, 1, incoming_window=PLENTY))
        await settled(proxy)
        look(proxy)
        assert await client.expect_end() == RESOURCE_LIMIT
    assert len(lines(caplog, "connection_output_bytes_max")) == 1
    assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max


async def test_a_connection_stays_while_a_link_sends_beside_what_ended_links_have_left(
    proxy: StubProxy,
) -> None:
    async with await RawClient.begun(proxy.address, incoming_window=0) as client:
        await receive_and_leave(client, proxy, "r1", COUNT // 2, ProtonLink.SND_SETTLED)
        client.send(attach_receiver("r2", "queue"))
        await client.expect("attach")
        client.send(credit(0, COUNT, incoming_window=0))
        await settled(proxy)
        look(proxy)
        client.send(credit(0, COUNT, incoming_window=PLENTY))
        for _ in range(COUNT):
            await client.expect("transfer")
        look(proxy)
        client.say("end")
        await client.expect("end")
        assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max


async def test_a_connection_stays_whose_other_session_is_held_up_by_its_own_window(proxy: StubProxy) -> None:
    """What a session has left behind does not concern another one that has room of its own."""
    async with await RawClient.begun(proxy.address, incoming_window=0) as client:
        await receive_and_leave(client, proxy, "r1", COUNT, ProtonLink.SND_SETTLED)
        await client.begin(1, incoming_window=0)
        client.send(attach_receiver("r2", "queue", 0, 1))
        await client.expect("attach")
        client.send(credit(0, COUNT, channel=1, incoming_window=0))
        await settled(proxy)
        look(proxy)
        client.send(credit(0, COUNT, channel=1, incoming_window=PLENTY))
        for _ in range(COUNT):
            await client.expect("transfer")


async def test_what_a_link_has_not_sent_leaves_its_room_when_it_ends(proxy: StubProxy) -> None:
    """Its messages were not settled yet."""
    async with await RawClient.begun(proxy.address, incoming_window=0) as client:
        for number in range(3):
            await receive_and_leave(client, proxy, f"r{number}", COUNT, ProtonLink.SND_UNSETTLED)
            look(proxy)
        assert proxy.worker.outputs.left == LIMITS.outputs_bytes_max
        client.send(attach_receiver("last", "queue"), credit(0, COUNT, incoming_window=PLENTY))
        for _ in range(COUNT):
            await client.expect("transfer")


class Transport:
    """Is told how much may wait in it before its protocol hears of that."""

    high = 0

    def get_extra_info(self, _: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def abort(self) -> None:
        """The connection was not let in."""


@pytest.mark.parametrize("limits", [ProxyLimits(), ProxyLimits(output_bytes_max=8 * KIB)])
def test_whoever_is_held_up_hears_that_his_socket_has_taken_some(limits: ProxyLimits) -> None:
    """A socket that never had much waiting says nothing when it has less."""
    full = SimpleNamespace(take=lambda _: False)
    worker = SimpleNamespace(settings=SimpleNamespace(limits=limits), arrivals=full)
    transport = Transport()
    ClientSocket(cast(Any, worker), cast(Any, None)).connection_made(cast(Any, transport))
    assert 0 < transport.high < min(ALWAYS_BYTES, limits.output_bytes_max)
