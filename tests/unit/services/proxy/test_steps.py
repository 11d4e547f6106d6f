"""However much one client says at once, and however much it has when it goes: no step of the event loop is long by it.

Law: what is taken in steps is taken in order, the end of the connection behind it, and nothing of it stays.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from lockstep.runtime.loop_watch import LONG_SECONDS, LongStep, LoopWatch
from services.proxy import steps
from services.proxy.containers import Containers
from services.proxy.core.conditions import HANDLE_IN_USE
from services.proxy.outgoing_link import RETURNED_AT_ONCE
from services.proxy.output_room import OutputRoom
from services.proxy.reading import Reading
from services.proxy.settings import ProxyLimits, ProxySettings
from services.proxy.steps import Work, go_on, in_steps
from services.proxy.worker_room import WorkerRoom
from tests.amqp import codec, stub_brokers
from tests.amqp.codec import AMQP_HEADER, SASL_HEADER, composite, performative
from tests.amqp.listener_rig import FakeTransport, ListenerRig
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender, begin, credit
from tests.amqp.stub_brokers import StubBatches, StubSession, StubSet, stub_nodes
from tests.amqp.stub_proxy import serving
from tests.long_steps import refuse

READ_BYTES = 256 * 1024
"""What a socket gives at once."""
MANY = 50_000
WINDOW = 1_000_000
BEGUN = (
    SASL_HEADER
    + performative("sasl_init", mechanism=codec.Symbol("ANONYMOUS"))
    + AMQP_HEADER
    + performative("open", container_id="steps")
    + begin(incoming_window=WINDOW)
)
REFUSED = b"".join(attach_receiver(f"r{number}", "", number) for number in range(8_100))
"""Nearly as many links as a connection may have; none has an address."""
SENDERS = b"".join(attach_sender(f"s{number}", "q", number) for number in range(4_000))


class Batches(StubBatches):
    """Writes down what comes."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.settled = 0

    def publish(self, exchange: str, key: str, messages: Sequence[Any], *_: Any) -> Confirmation:
        self.published.extend(message.body for message in messages)
        return super().publish()

    def settle(self, _queue: str, _epoch: int, positions: Sequence[int], *_: Any) -> Confirmation:
        self.settled += len(positions)
        return super().settle()


class Set(StubSet):
    """Counts consumers. Its queues never end."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers = 0

    def consume(self, *arguments: Any, **options: Any) -> int:
        self.consumers += 1
        consumer = super().consume(*arguments, **options)
        self._left[consumer] = 10 * MANY
        return consumer

    def stop_consuming(self, consumer: int, _first: Sequence[object] = ()) -> None:
        self.consumers -= 1
        super().stop_consuming(consumer)

    def _deliver(self, consumer: int, count: int) -> None:
        port = self._consumers.get(consumer)
        if port is None:
            return
        first = 10 * MANY - self._left[consumer]
        self._left[consumer] -= count
        port.deliver(
            "queue",
            stub_brokers.EPOCH,
            tuple(stub_brokers.message_of(first + place) for place in range(count)),
        )


class Session(StubSession):
    """Of these."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: Batches = Batches()
        self.set: Set = Set()


class Client:
    """One connection to the listener, without a socket."""

    def __init__(self) -> None:
        self.session = Session()
        # What ends with an error is not cut off while it is still being taken.
        limits = ProxyLimits(close_seconds=60)
        self.rig = ListenerRig(ProxySettings(brokers=("127.0.0.1:1",), limits=limits))
        self.rig.worker.nodes = stub_nodes(self.session)
        self.transport = FakeTransport()
        self.socket = self.rig.worker.socket(None)
        self.transport.protocol = self.socket
        self.socket.connection_made(self.transport)
        self.socket.data_received(BEGUN)

    async def say(self, data: bytes) -> None:
        """As much at once as a socket gives, and more when the proxy reads."""
        for at in range(0, len(data), READ_BYTES):
            while not self.transport.is_read:
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(self.socket.data_received, data[at : at + READ_BYTES])
            await asyncio.sleep(0)

    async def until_done(self) -> None:
        """All of it is taken, and nothing is under way."""
        while not self.transport.is_read or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        assert not self.rig.found

    async def leave(self) -> None:
        """Until nothing of it is left."""
        self.transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        assert self.socket.connection is not None and self.socket.connection.is_over
        assert not self.rig.found


async def having(said: bytes) -> Client:
    """One that has said this, and all of it is taken."""
    client = Client()
    await client.say(said)
    await client.until_done()
    return client


@contextlib.asynccontextmanager
async def no_long_step() -> AsyncIterator[None]:
    found: list[LongStep] = []
    watch = LoopWatch("proxy", LONG_SECONDS, found.append)
    watch.start()
    await asyncio.sleep(0.05)
    yield
    await asyncio.sleep(0.05)
    watch.stop()
    refuse(found)


async def test_thousands_of_attaches_in_one_write() -> None:
    client = Client()
    async with no_long_step():
        await client.say(REFUSED)
        assert not client.transport.is_read, "it is not read before that is taken"
        await client.until_done()
        await client.leave()


@pytest.mark.parametrize("links", [REFUSED, SENDERS], ids=["refused", "attached"])
async def test_thousands_of_links_of_a_connection_that_is_lost(links: bytes) -> None:
    client = await having(links)
    async with no_long_step():
        await client.leave()


@pytest.mark.parametrize("links", [REFUSED, SENDERS], ids=["refused", "attached"])
async def test_thousands_of_links_of_a_session_that_ends(links: bytes) -> None:
    client = await having(links)
    async with no_long_step():
        await client.say(performative("end") + begin())
        await client.until_done()
    await client.say(attach_sender("another", "q"))
    await client.until_done()
    assert client.socket.connection is not None and client.socket.connection.links == 1


async def test_a_second_link_on_the_handle_of_another_ends_the_connection() -> None:
    """The engine would know one of them by it, and free all others at once with their session."""
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("one", "queue")
        client.send(attach_sender("another", "queue"))
        assert await client.expect_end() == HANDLE_IN_USE


ATTACHED = attach_sender("00000000", "q")
LATE: dict[str, Callable[[], bytes]] = {
    "links": lambda: b"".join(ATTACHED.replace(b"0" * 8, b"%08d" % number) for number in range(50_000)),
    "sessions": lambda: (begin(1) + performative("end", 1)) * 50_000,
}


@pytest.mark.parametrize("what", LATE)
async def test_what_a_client_begins_behind_our_close_does_not_gather(what: str) -> None:
    """The engine keeps it, and would let go of all of it at once."""
    client = await having(b"")
    connection = client.socket.connection
    assert connection is not None
    connection.close(None)
    async with no_long_step():
        await client.say(LATE[what]())
        await client.until_done()
        await client.leave()


async def test_thousands_of_detaches_in_one_write() -> None:
    client = await having(SENDERS)
    async with no_long_step():
        await client.say(b"".join(performative("detach", handle=n, closed=True) for n in range(4_000)))
        await client.until_done()
    assert client.socket.connection is not None and client.socket.connection.links == 0


FLOWS = {
    "empty frames": bytes.fromhex("0000000802000000"),
    "of the session": performative("flow", next_incoming_id=0, incoming_window=WINDOW, next_outgoing_id=0),
    "with an echo": credit(0, 10, echo=True),
    "with credit": credit(0, 10),
    "that drain credit": credit(0, 10, drain=True),
    "that drain nothing": credit(0, 0, drain=True),
    "that acquire": credit(
        0, 10, properties=codec.mapping(codec.symbol("txn-id"), codec.binary(b"transaction"))
    ),
}


@pytest.mark.parametrize("name", FLOWS)
async def test_thousands_of_flows_in_one_write(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    client = await having(attach_receiver("r", "queue"))
    turns = 0
    async with no_long_step():
        client.socket.data_received(FLOWS[name] * (READ_BYTES // len(FLOWS[name])))
        while not client.transport.is_read:
            turns += 1
            await asyncio.sleep(0)
        await client.until_done()
    assert turns >= 4, "a step may end between pieces of it"
    await client.leave()


async def test_others_are_read_behind_a_read_that_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of it was taken at once: the loop would read the same client again, dozens of times."""
    monkeypatch.setattr(steps, "STEP_SECONDS", 60.0)
    client = Client()
    is_read = []
    for count in 10, READ_BYTES // 8:
        client.socket.data_received(FLOWS["empty frames"] * count)
        is_read.append(client.transport.is_read)
    await asyncio.sleep(0)
    assert [*is_read, client.transport.is_read] == [True, False, True]
    await client.leave()


@pytest.mark.parametrize("is_settled", [True, False])
async def test_an_outcome_of_thousands_of_deliveries(is_settled: bool) -> None:
    client = await having(attach_receiver("r", "queue") + credit(0, MANY, incoming_window=WINDOW))
    while client.session.set._left[1] > 9 * MANY:
        await asyncio.sleep(0)
    accepted = composite("accepted")
    async with no_long_step():
        await client.say(
            performative("disposition", role=True, first=0, last=MANY - 1, settled=is_settled, state=accepted)
        )
        await client.until_done()
    assert client.session.batches.settled == MANY
    await client.leave()
    assert client.session.set.consumers == 0


@pytest.mark.parametrize(
    "said",
    [performative("detach", handle=0, closed=True), performative("end"), b""],
    ids=["detach", "end", "lost"],
)
@pytest.mark.parametrize("is_owed", [True, False])
async def test_deliveries_of_a_link_that_ends_are_settled_one_by_one(
    said: bytes, is_owed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would settle all of them at once when it frees the link."""
    count = 2_000
    client = await having(attach_receiver("r", "queue") + credit(0, count, incoming_window=WINDOW))
    while client.session.set._left[1] > 10 * MANY - count:
        await asyncio.sleep(0)
    await client.until_done()
    accepted = performative("disposition", role=True, first=0, last=count - 1, state=composite("accepted"))
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    # They are settled when the broker has answered, which takes a turn.
    client.socket.data_received(accepted * is_owed + said)
    if not said:
        client.socket.connection_lost(None)
    turns = 0
    while not client.transport.is_read or len(asyncio.all_tasks()) > 1:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= count // 3
    assert client.session.batches.settled == count
    assert not client.rig.found
    if said:
        await client.leave()


@pytest.mark.parametrize(
    "said",
    [performative("detach", handle=0, closed=True), performative("end"), performative("close"), b""],
    ids=["detach", "end", "close", "lost"],
)
async def test_what_a_link_has_left_goes_back_in_steps(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of it before the queue has anything for whoever attaches behind that."""
    count = 5 * RETURNED_AT_ONCE
    client = await having(attach_receiver("r", "queue") + credit(0, count, incoming_window=WINDOW))
    while client.session.set._left[1] > 10 * MANY - count:
        await asyncio.sleep(0)
    await client.until_done()
    batches, returning = client.session.batches, client.rig.worker.returning
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    if said:
        client.socket.data_received(said)
    else:
        client.socket.connection_lost(None)
    most = before = batches.settled
    while batches.settled < count:
        assert len(returning) == 1 or not before, "an attach waits for it"
        await asyncio.sleep(0)
        most, before = max(most, batches.settled - before), batches.settled
    assert most <= 2 * RETURNED_AT_ONCE
    while len(returning):
        await asyncio.sleep(0)
    if said:
        await client.leave()
    assert not client.rig.found


async def test_what_came_before_the_end_of_the_wire_is_taken_before_it() -> None:
    """And all of it, in order, though it takes many steps."""
    client = Client()
    names = [b"%d" % number for number in range(500)]
    transfers = b"".join(
        performative(
            "transfer",
            0,
            codec.message(name),
            handle=9_000,
            delivery_id=number,
            delivery_tag=codec.binary(name),
            settled=True,
        )
        for number, name in enumerate(names)
    )
    await client.say(attach_sender("sender", "queue", 9_000))
    await client.until_done()
    client.socket.data_received(SENDERS[:READ_BYTES] + transfers[:1])
    client.socket.data_received(transfers[1:])
    assert not client.session.batches.published, "it is behind the attaches"
    await client.leave()
    assert client.session.batches.published == names


async def test_what_is_said_behind_a_close_is_not_heard() -> None:
    client = Client()
    client.socket.data_received(SENDERS[: READ_BYTES // 4 * 4] + b"")
    await client.until_done()
    known = client.socket.connection
    assert known is not None
    before = known.links
    client.socket.data_received(performative("close") + attach_sender("late", "q", 9_000))
    await client.leave()
    assert (before, known.links) == (4_000, 0)


async def test_a_wire_that_is_lost_while_its_links_end() -> None:
    """The end of the connection is behind that of its links, which the proxy had begun to end for a reason of its own."""
    client = Client()
    released: list[str] = []

    class Noting(Containers):
        def release(self, name: str, owner: object) -> None:
            released.append(name)
            super().release(name, owner)

    worker = client.rig.worker
    worker.containers = Noting(worker.nodes, 0.0, worker.keep, worker.refusals)
    await client.say(SENDERS)
    await client.until_done()
    connection = client.socket.connection
    assert connection is not None
    connection.close(None)
    while client.transport.is_read:
        await asyncio.sleep(0)
    await client.leave()
    assert released == ["steps"]


async def test_what_a_client_says_while_its_links_end_is_heard_behind_that() -> None:
    client = await having(SENDERS)
    connection = client.socket.connection
    assert connection is not None
    connection.close(None)
    while client.transport.is_read:
        await asyncio.sleep(0)
    client.socket.data_received(performative("close"))
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    assert client.transport.is_closing()


async def test_a_proxy_that_stops_lets_go_of_thousands_of_links() -> None:
    session = Session()
    async with serving(ProxyLimits(stop_seconds=10), session=session) as proxy:
        client = await RawClient.begun(proxy.address)
        client.send(b"".join(attach_receiver(f"r{number}", "q", 4_000 + number) for number in range(500)))
        client.send(SENDERS[: len(SENDERS) // 2])
        while session.set.consumers < 500:
            await asyncio.sleep(0.01)
        async with no_long_step():
            stopping = asyncio.ensure_future(proxy.worker.stop())
            await client.expect_end()
            client.abort()
            await stopping
        assert session.set.consumers == 0
        assert not proxy.worker._tasks


# --- the parts ---


def use(seconds: float) -> None:
    """Of this thread's processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def slow_work(count: int, done: list[int]) -> Iterator[None]:
    for number in range(count):
        use(0.002)
        done.append(number)
        yield


def test_a_step_ends_by_the_time_that_it_has_taken() -> None:
    done: list[int] = []
    work = slow_work(10, done)
    assert not go_on(work)
    assert 2 <= len(done) <= 5
    while not go_on(work):
        pass
    assert done == list(range(10))


async def test_others_have_their_turn_between_the_steps_of_a_work() -> None:
    done: list[int] = []
    working = asyncio.ensure_future(in_steps(slow_work(20, done)))
    turns = 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(done) == 20 and turns >= 6


async def test_a_work_goes_on_behind_what_it_has_left_to_another() -> None:
    done: list[int] = []
    other: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def waiting() -> Work:
        yield other
        done.append(1)

    working = asyncio.ensure_future(in_steps(waiting()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not done
    other.set_exception(ValueError("whatever came of it"))
    await working
    assert done == [1]


class Wire:
    """Notes whether it is read. It is never full."""

    def __init__(self) -> None:
        self.is_read = True

    def write(self, data: bytes | bytearray) -> None: ...
    def waiting_bytes(self) -> int:
        return 0

    def close(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def test_a_client_is_read_when_nobody_has_enough_for_now() -> None:
    wire = Wire()
    reading = Reading(wire)
    reading.pause_reading()
    reading.pause_reading()
    reading.resume_reading()
    assert (reading.is_paused, wire.is_read) == (True, False)
    reading.resume_reading()
    assert (reading.is_paused, wire.is_read) == (False, True)


def test_links_that_wait_for_room_are_told_in_steps() -> None:
    class HeldUp:
        session = None
        unsent = 0
        leaves_unsent = False
        told = 0

        def resume(self) -> None:
            use(0.002)
            self.told += 1

    room, links = (
        OutputRoom(Wire(), WorkerRoom(1_000), ProxyLimits(), lambda *_: None),
        [HeldUp() for _ in range(10)],
    )
    for link in links:
        room.hold_up(link)
    assert room.resume()
    assert [link.told for link in links[-5:]] == [0] * 5
    gone = links.pop()
    room.forget(gone)
    room.hold_up(links[0])
    while room.resume():
        pass
    assert [link.told for link in links] == [1] * 9, "who has found no room just now is told another time"
    assert not room.resume()
    assert (links[0].told, gone.told) == (2, 0)
