"""Primary and Sessions services and the subscriber, over real gRPC in one process, with scripted cores."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.clock import Now
from lockstep.core.commands import PublishCommand
from lockstep.core.effects import (
    AnyEffect,
    CloseBackupStream,
    CloseClientStream,
    CloseSubscription,
    DropLeaseKey,
    EndBackupStreams,
    EndClientStreams,
    OpenSubscription,
    TellBackup,
    TellClient,
    TellPrimary,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import (
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    QueueId,
    QueuePosition,
    SessionId,
    SessionKey,
    SetName,
)
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    ClientStreamClosed,
    ClientStreamDrained,
    ClientStreamFull,
    PrimarySaid,
    PrimaryStreamClosed,
    Tick,
)
from lockstep.core.replication import (
    HELD_IN_ONE,
    Acknowledge,
    Frames,
    HandedOver,
    HeldMessages,
    Refuse,
    Subscribe,
    SubscriptionAccepted,
)
from lockstep.core.requests import (
    AttachSession,
    ClientMessage,
    Heartbeat,
)
from lockstep.core.server_messages import (
    Answers,
    AttachRefused,
    CandidatesChanged,
    CommandAnswered,
    DeliveredMessage,
    Deliveries,
    HeartbeatAnswered,
    SessionAttached,
)
from lockstep.runtime.big_bytes import BIG_BYTES
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.loop_watch import LONG_SECONDS, LongStep, LoopWatch
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.session_codec import decode_response, encode_request
from services.backup.subscriber import Subscriber
from services.primary.long_requests import SAID_MAX
from services.primary.server import PrimaryService
from services.primary.sessions import CLIENT_BYTES_MAX, SessionsService
from tests.long_steps import refuse
from tests.unit.lockstep.runtime.serialized import whole

ORDERS, E1 = SetName("orders"), Epoch(1)
B1, B2, I2 = BrokerId("B1"), BrokerId("B2"), Incarnation("i2")
STALL_SECONDS = 1.0
WAIT_SECONDS = 30.0
"""For what has to happen."""
Script = Callable[[AnyInput], list[AnyEffect]]


class Scripted:
    """A core that remembers what it hears and answers by a script."""

    def __init__(self) -> None:
        self.heard: list[AnyInput] = []
        self.script: Script = lambda given: []

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        self.heard.append(given)
        return self.script(given)


class Node:
    """One process's worth of driver and streams."""

    def __init__(self) -> None:
        self.driver, self.core = Driver(), Scripted()
        self.driver.host(ORDERS, self.core)
        self.rights = ServingRights()
        self.channels = Channels()
        self.address = ""
        self.primary = PrimaryService(self.driver)
        self.sessions = SessionsService(
            self.driver, self.rights, lambda set_name: ["B1:1", "B2:2"], STALL_SECONDS
        )
        self.subscriber = Subscriber(self.driver, self.channels, lambda broker: self.address)

    async def do(self, *effects: AnyEffect) -> None:
        """Has the core ask for these effects now."""
        before, self.core.script = self.core.script, lambda given: list(effects)
        self.driver.feed(Tick(ORDERS))
        self.driver.drain()
        self.core.script = before

    async def hears(self, *kinds: type, count: int = 1) -> list[Any]:
        """Waits until the core has heard `count` inputs of these kinds."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found := [given for given in self.core.heard if isinstance(given, kinds)]) < count:
                await asyncio.sleep(0.005)
        return found


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """One node that is primary and backup of itself: both ends of each stream are looked at."""
    node, server = Node(), make_server()
    server.add_generic_rpc_handlers((node.primary.handlers(), node.sessions.handlers()))
    node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield node
    await node.subscriber.close()
    await node.channels.close()
    await server.stop(None)


def subscribe() -> Subscribe:
    return Subscribe(
        ORDERS, E1, B2, DiskId("d2"), I2, LogIndex(0), (), LogIndex(0), False, LogIndex(0)
    )  # fmt: skip


ACCEPTED = SubscriptionAccepted(ORDERS, E1, LogIndex(0), LogIndex(0), False, (), 0)


def frames(*bodies: bytes, commit_index: int = 0) -> Frames:
    return Frames(ORDERS, E1, tuple((body, b"") for body in bodies), LogIndex(commit_index))


async def subscribed(node: Node) -> int:
    """Opens subscription 7; returns the number of the stream on the primary's side."""
    await node.do(OpenSubscription(ORDERS, 7, B1, subscribe()))
    (said,) = await node.hears(BackupSaid)
    assert said.message == subscribe()
    await node.do(TellBackup(ORDERS, said.stream, ACCEPTED))
    await node.hears(PrimarySaid)
    return int(said.stream)


async def test_frames_and_acknowledgements_travel_in_order(node: Node) -> None:
    stream = await subscribed(node)
    await node.do(*(TellBackup(ORDERS, stream, frames(b"%d" % n, commit_index=n)) for n in range(50)))
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            said = [given.message for given in await node.hears(PrimarySaid) if given.message != ACCEPTED]
            bodies = [pair[0] for message in said for pair in message.frames]
            if len(bodies) == 50:
                break
            await asyncio.sleep(0.005)
    assert bodies == [b"%d" % n for n in range(50)]
    acknowledge = Acknowledge(ORDERS, E1, B2, I2, LogIndex(50))
    await node.do(TellPrimary(ORDERS, 7, acknowledge))
    heard = await node.hears(BackupSaid, count=2)
    assert heard[1] == BackupSaid(ORDERS, stream, acknowledge)


async def test_a_refusal_arrives_before_a_later_acknowledgement(node: Node) -> None:
    stream = await subscribed(node)
    refuse = Refuse(ORDERS, E1, B2, I2, (LogIndex(3), E1), "no room")
    acknowledge = Acknowledge(ORDERS, E1, B2, I2, LogIndex(9))
    await node.do(TellPrimary(ORDERS, 7, refuse), TellPrimary(ORDERS, 7, acknowledge))
    heard = await node.hears(BackupSaid, count=3)
    assert heard[1:] == [BackupSaid(ORDERS, stream, refuse), BackupSaid(ORDERS, stream, acknowledge)]


async def test_a_stream_closed_by_the_primary_delivers_what_was_sent_before(node: Node) -> None:
    stream = await subscribed(node)
    await node.do(TellBackup(ORDERS, stream, frames(b"last")), CloseBackupStream(ORDERS, stream))
    await node.hears(PrimaryStreamClosed)
    assert PrimarySaid(ORDERS, 7, frames(b"last")) in node.core.heard


async def test_a_fault_ends_all_streams_of_its_set_without_a_word(node: Node) -> None:
    async with connect(node) as client:
        await attached(node, client)
        await subscribed(node)
        other = SetName("other")
        await node.do(EndClientStreams(other), EndBackupStreams(other))
        await client.say(Heartbeat())
        await node.hears(ClientSaid, count=2)
        await node.do(EndClientStreams(ORDERS), EndBackupStreams(ORDERS))
        assert await client.hear() is None
        await node.hears(PrimaryStreamClosed)
        await node.hears(ClientStreamClosed)
        await node.hears(BackupStreamClosed)


async def test_a_long_last_word_arrives_whole_behind_all_frames_and_keeps_neither_side(node: Node) -> None:
    held = [HeldMessages() for _ in range(2000)]
    for number, part in enumerate(held):
        first = number * HELD_IN_ONE << 20
        part.add(SessionKey(5), QueueId(6), range(first, first + (HELD_IN_ONE << 20), 1 << 20))
    word = HandedOver(ORDERS, E1, B2, LogIndex(9), held=tuple(held))
    stream, found = await subscribed(node), list[LongStep]()
    watch = LoopWatch("both", LONG_SECONDS, found.append)
    watch.start()
    await node.do(TellBackup(ORDERS, stream, frames(b"last")), TellBackup(ORDERS, stream, word))
    await node.hears(BackupStreamClosed)
    watch.stop()
    refuse(found)
    said = [given.message for given in await node.hears(PrimarySaid) if given.message != ACCEPTED]
    assert said == [frames(b"last"), word]


async def test_a_replaced_subscription_is_heard_no_more(node: Node) -> None:
    await subscribed(node)
    await node.do(OpenSubscription(ORDERS, 8, B1, subscribe()))
    await node.hears(BackupStreamClosed)
    await asyncio.sleep(0.05)
    assert not [given for given in node.core.heard if given == PrimaryStreamClosed(ORDERS, 7)]


async def test_a_closed_subscription_ends_on_the_other_side_too(node: Node) -> None:
    stream = await subscribed(node)
    await node.do(CloseSubscription(ORDERS, 7))
    assert await node.hears(BackupStreamClosed) == [BackupStreamClosed(ORDERS, stream)]


async def test_a_primary_that_is_not_there_closes_the_stream(node: Node) -> None:
    node.address = "127.0.0.1:1"
    await node.do(OpenSubscription(ORDERS, 7, B1, subscribe()))
    assert await node.hears(PrimaryStreamClosed) == [PrimaryStreamClosed(ORDERS, 7)]


# Clients


class Client:
    """A client at the level of bytes."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        open_stream: Any = self.channel.stream_stream("/lockstep.wire.v1.Sessions/Open")
        self.call: Any = open_stream()

    async def say(self, *messages: ClientMessage, set_name: SetName = ORDERS) -> None:
        await self.call.write(whole(encode_request(set_name, messages)))

    async def hear(self) -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            data = await self.call.read()
        return None if data is grpc.aio.EOF else decode_response(data)[1]

    async def _read_on(self) -> None:
        while await self.call.read() is not grpc.aio.EOF:
            pass

    async def fails(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(self._read_on(), WAIT_SECONDS)
        metadata = dict(caught.value.trailing_metadata() or ())
        return caught.value.code(), ErrorCode(int(str(metadata["lockstep-code"]))).name


@contextlib.asynccontextmanager
async def connect(node: Node) -> AsyncIterator[Client]:
    client = Client(node.address)
    try:
        yield client
    finally:
        client.call.cancel()
        await client.channel.close()


ATTACH = AttachSession(ORDERS, SessionId("s"), SessionKey(0), Epoch(0), 1000, 0)


def answers(*numbers: int) -> Answers:
    return Answers(E1, LogIndex(5), tuple(CommandAnswered(n, ErrorCode.NONE, "", 0) for n in numbers))


async def attached(node: Node, client: Client) -> int:
    await client.say(ATTACH)
    (said,) = await node.hears(ClientSaid)
    return int(said.stream)


async def test_answers_reach_a_client_and_commands_the_core(node: Node) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        assert node.core.heard[-1] == ClientSaid(ORDERS, stream, (ATTACH,))
        await client.say(Heartbeat(), Heartbeat())
        await node.hears(ClientSaid, count=2)
        assert node.core.heard[-1] == ClientSaid(ORDERS, stream, (Heartbeat(), Heartbeat()))
        await node.do(TellClient(ORDERS, stream, answers(1, 2), 0), TellClient(ORDERS, stream, answers(3), 0))
        assert await client.hear() == (answers(1, 2), answers(3))
    assert (await node.hears(ClientStreamClosed)) == [ClientStreamClosed(ORDERS, stream)]


async def test_what_a_client_says_at_once_is_heard_in_parts(node: Node) -> None:
    async with connect(node) as client:
        await attached(node, client)
        await client.say(*[Heartbeat()] * (2 * SAID_MAX + 2))
        heard = await node.hears(ClientSaid, count=4)
        assert [len(said.messages) for said in heard] == [1, SAID_MAX, SAID_MAX, 2]


@pytest.mark.parametrize(
    "given",
    [
        SessionAttached(E1, LogIndex(1), SessionKey(1), E1, 1, ()),
        AttachRefused(E1, LogIndex(1), ErrorCode.NOT_PRIMARY, "elsewhere", ()),
        CandidatesChanged(E1, LogIndex(1), ()),
    ],
)
async def test_empty_candidates_are_filled_in(
    node: Node, given: SessionAttached | AttachRefused | CandidatesChanged
) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        await node.do(TellClient(ORDERS, stream, given, 0))
        (heard,) = await client.hear()
        assert type(heard) is type(given)
        assert heard.candidates == ("B1:1", "B2:2")


async def test_an_answer_under_an_ended_lease_is_dropped_and_the_stream_ends(node: Node) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        node.rights.extend(boottime_ms() + 5000, boottime_ms())
        await node.do(TellClient(ORDERS, stream, answers(1), boottime_ms() + 5000))
        assert await client.hear() == (answers(1),)
        # Nothing is written before all effects are performed: between its core and its socket the right ends.
        node.driver.on(DropLeaseKey, lambda effect: node.rights.end(effect.set_name))
        await node.do(
            TellClient(ORDERS, stream, answers(2), boottime_ms() + 5000),
            TellClient(ORDERS, stream, HeartbeatAnswered(E1, LogIndex(5)), 0),
            DropLeaseKey(ORDERS, Incarnation("gone")),
        )
        assert await client.hear() == (HeartbeatAnswered(E1, LogIndex(5)),)
        assert await client.hear() is None


async def test_a_set_that_is_not_here_is_refused_with_candidates(node: Node) -> None:
    async with connect(node) as client:
        billing = SetName("billing")
        await client.say(
            AttachSession(billing, SessionId("s"), SessionKey(0), Epoch(0), 1000, 0), set_name=billing
        )
        (refused,) = await client.hear()
        assert isinstance(refused, AttachRefused)
        assert (refused.code, refused.candidates) == (ErrorCode.NOT_PRIMARY, ("B1:1", "B2:2"))


async def test_garbage_gets_a_typed_error(node: Node) -> None:
    for data in (b"\xff\xff\xff", b"", whole(encode_request(ORDERS, [Heartbeat()]))):
        async with connect(node) as client:
            await client.call.write(data)
            assert await client.fails() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")


async def test_garbage_behind_an_attach_ends_that_stream_only(node: Node) -> None:
    async with connect(node) as client, connect(node) as other:
        await attached(node, client)
        await client.call.write(b"\xff\xff\xff")
        assert await client.fails() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        assert len(await node.hears(ClientStreamClosed)) == 1
        await other.say(ATTACH)
        await node.hears(ClientSaid, count=2)


async def test_garbage_on_the_methods_between_brokers_gets_typed_errors(node: Node) -> None:
    async with grpc.aio.insecure_channel(node.address) as channel:
        for method in ("Subscribe", "Acknowledge", "Refuse"):
            for data in (b"\xff\xff\xff", b""):
                call: Any
                if method == "Acknowledge":
                    call = channel.stream_unary(f"/lockstep.wire.v1.Primary/{method}")(iter([data]))  # type: ignore[arg-type]
                else:
                    call = channel.unary_unary(f"/lockstep.wire.v1.Primary/{method}")(data)  # type: ignore[arg-type]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert "lockstep-code" in dict(caught.value.trailing_metadata() or ())


async def test_a_slow_client_is_not_read_from(node: Node) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        message = "x" * 1024 * 1024
        big = AttachRefused(E1, LogIndex(1), ErrorCode.NONE, message, ("a:1",))
        node.core.script = lambda given: []
        many = [TellClient(ORDERS, stream, big, 0)] * 48
        waiting = node.sessions._streams[stream].outbox
        # Sizes are counted for what is long by nature; here the writer just has a lot to do.
        for effect in many:
            waiting.put((effect.message, None), CLIENT_BYTES_MAX)
        # One read was under way when it began; the next one waits.
        await client.say(Heartbeat())
        await client.say(Heartbeat())
        await asyncio.sleep(0.1)
        assert len(await node.hears(ClientSaid, count=2)) == 2
        for _ in range(48):
            await client.hear()
        await node.hears(ClientSaid, count=3)
        await node.do(CloseClientStream(ORDERS, stream))
        assert await client.hear() is None


def big_delivery() -> Deliveries:
    """A megabyte."""
    return Deliveries(
        E1, LogIndex(1), 1, "q", (DeliveredMessage(QueuePosition(1), b"", bytes(1 << 20), 0, 0, True),)
    )


async def test_the_replica_hears_when_much_waits_for_a_client_and_when_it_was_written(node: Node) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        await node.do(*[TellClient(ORDERS, stream, big_delivery(), 0)] * 16)
        assert await node.hears(ClientStreamFull) == [ClientStreamFull(ORDERS, stream)]
        for _ in range(16):
            await client.hear()
        assert await node.hears(ClientStreamDrained) == [ClientStreamDrained(ORDERS, stream)]


async def test_a_client_that_does_not_read_loses_its_stream_and_what_waited_for_it(node: Node) -> None:
    async with connect(node) as client:
        stream = await attached(node, client)
        waiting = node.sessions._streams[stream].outbox
        await node.do(*[TellClient(ORDERS, stream, big_delivery(), 0)] * 100)
        async with asyncio.timeout(STALL_SECONDS + WAIT_SECONDS):
            while not [given for given in node.core.heard if isinstance(given, ClientStreamClosed)]:
                await asyncio.sleep(0.05)
        assert waiting.bytes_waiting == 0
        assert node.sessions.streams == 0


async def test_big_frames_keep_their_place_between_small_ones(node: Node) -> None:
    stream = await subscribed(node)
    bodies = [b"first", bytes(3 * BIG_BYTES), b"between", b"x" * BIG_BYTES, b"last"]
    for body in bodies:
        await node.do(TellBackup(ORDERS, stream, frames(body)))
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found := bodies_heard(node)) < len(bodies):
            await asyncio.sleep(0.005)
    assert found == bodies


def bodies_heard(node: Node) -> list[bytes]:
    """Of frames, by the backup."""
    heard = [given.message for given in node.core.heard if isinstance(given, PrimarySaid)]
    return [pair[0] for message in heard if isinstance(message, Frames) for pair in message.frames]


async def test_big_publishes_keep_their_place_between_small_ones(node: Node) -> None:
    bodies = [b"first", bytes(3 * BIG_BYTES), b"between", b"x" * BIG_BYTES, b"last"]
    async with connect(node) as client:
        await attached(node, client)
        for number, body in enumerate(bodies, 1):
            await client.say(PublishCommand(number, "", "q", AlikeMessages((body,))))
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found := bodies_said(node)) < len(bodies):
                await asyncio.sleep(0.005)
    assert found == bodies


def bodies_said(node: Node) -> list[bytes]:
    """By a client, in publishes of one message."""
    said = [
        message for given in node.core.heard if isinstance(given, ClientSaid) for message in given.messages
    ]
    return [message.messages[0].body for message in said if isinstance(message, PublishCommand)]
