"""A big delivery to a client goes to the engine in pieces: it is whole, in its place, or the client is told that it is none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from time import thread_time
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.listener import ClientSocket
from services.proxy.settings import ProxyLimits, ProxySettings
from services.proxy.steps import in_steps
from tests.amqp import codec
from tests.amqp.codec import AMQP_HEADER, SASL_HEADER, Frame, composite, performative
from tests.amqp.listener_rig import FakeTransport, ListenerRig
from tests.amqp.raw_client import RawClient, attach_receiver, begin, credit
from tests.amqp.stub_brokers import EPOCH, StubBatches, StubSession, StubSet, stub_nodes
from tests.amqp.stub_proxy import serving

FRAME_BYTES = 64 * 1024
BIG = 6 * 1024 * 1024
"""Bytes; more than the engine is given while the window is closed."""
WINDOW = 10
"""Frames: a part of a big message."""
PLENTY = 100_000
STEP_SECONDS = 0.02
"""Of processor time."""
PRESETTLED: dict[str, Any] = {"snd_settle_mode": codec.ubyte(1)}


class Queue(StubSet):
    """Each consumer gets messages of these sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.messages = [message(number, size) for number, size in enumerate(sizes, 1)]
        self.port: Any = None

    def consume(self, port: Any, *arguments: Any, **options: Any) -> int:
        self.port = port
        consumer = super().consume(port, *arguments, **options)
        self._left[consumer] = len(self.messages)
        return consumer

    def _deliver(self, consumer: int, count: int) -> None:
        port = self._consumers.get(consumer)
        if port is None:
            return
        first = len(self.messages) - self._left[consumer]
        messages = self.messages[first : first + count]
        self._left[consumer] -= len(messages)
        if messages:
            port.deliver("queue", EPOCH, tuple(messages))


def message(number: int, size: int) -> DeliveredMessage:
    section = b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")
    return DeliveredMessage(
        QueuePosition(number), b"\x00\x53\x70\x45" + section, bytes([number]) * size, 0, 0, True
    )


class Batches(StubBatches):
    def __init__(self) -> None:
        self.settled: list[tuple[list[int], int]] = []

    def settle(
        self, _queue: str, _epoch: int, positions: Sequence[int], disposition: int, *_: Any
    ) -> Confirmation:
        self.settled.append((list(positions), disposition))
        return super().settle()


class Session(StubSession):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.queue = self.set = Queue(sizes)
        self.known = self.batches = Batches()
        self.worker: Any = None
        """Whose it is."""


@pytest.fixture
def session() -> Session:
    return Session(10, BIG, 10)


@pytest.fixture
async def client(session: Session) -> AsyncIterator[RawClient]:
    """Its session has a window of some frames."""
    async with serving(session=session) as proxy:
        session.worker = proxy.worker
        client = await RawClient.opened(proxy.address, max_frame_size=FRAME_BYTES)
        async with client:
            await client.begin(incoming_window=WINDOW)
            yield client


def opened(window: int = PLENTY) -> bytes:
    """The client has room for so many frames more than came; of a session that has got `WINDOW` of them."""
    return performative(
        "flow", next_incoming_id=WINDOW, incoming_window=window, next_outgoing_id=0, outgoing_window=PLENTY
    )


async def transfers(client: RawClient, count: int) -> list[Frame]:
    """The next so many."""
    return [await client.expect("transfer") for _ in range(count)]


async def ends(client: RawClient, count: int) -> list[Frame]:
    """All transfers until so many deliveries were whole or aborted."""
    frames = []
    while count:
        frames.append(await client.expect("transfer"))
        count -= not frames[-1]["more"]
    return frames


def bodies(frames: Sequence[Frame], handle: int = 0) -> list[bytes]:
    """Of all deliveries on a link, in the order of their beginnings; with what is before the data."""
    whole: dict[int, bytes] = {}
    for frame in frames:
        if frame["handle"] == handle:
            whole[frame["delivery_id"]] = whole.get(frame["delivery_id"], b"") + frame.payload
    return list(whole.values())


async def begin_big(client: RawClient, **attached: Any) -> list[Frame]:
    """The window is closed in the middle of the big one."""
    await client.attach_receiver("r", "queue", **attached)
    client.send(credit(0, 10, incoming_window=WINDOW))
    frames = await transfers(client, WINDOW)
    assert frames[-1]["more"]
    return frames


async def until(session: Session, *settled: tuple[list[int], int]) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while session.known.settled != list(settled) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    assert session.known.settled == list(settled)


async def test_a_big_delivery_keeps_its_place_between_small_ones(client: RawClient) -> None:
    frames = await begin_big(client)
    client.send(opened())
    frames += await ends(client, 2)
    found = bodies(frames)
    assert [(body[-1], body.count(body[-1:])) for body in found] == [(1, 10), (2, BIG), (3, 10)]
    ids = [frame["delivery_id"] for frame in frames if frame["delivery_tag"] is not None]
    assert sorted(set(ids)) == [0, 1, 2]


async def test_big_deliveries_of_two_links_go_side_by_side(client: RawClient) -> None:
    for handle in 0, 1:
        await client.attach_receiver(f"r{handle}", "queue", handle)
    client.send(credit(0, 10, incoming_window=PLENTY) + credit(1, 10, incoming_window=PLENTY))
    frames = await ends(client, 6)
    for handle in 0, 1:
        assert [len(body) > BIG for body in bodies(frames, handle)] == [False, True, False]
    handles = [frame["handle"] for frame in frames]
    assert sum(one != two for one, two in pairwise(handles)) > 6


async def test_a_window_that_is_closed_in_the_middle_and_opened_again(client: RawClient) -> None:
    frames = await begin_big(client)
    client.send(opened(1))
    frames += await transfers(client, 1)
    assert frames[-1]["more"]
    await asyncio.sleep(0.1)
    client.send(
        performative(
            "flow", next_incoming_id=WINDOW + 1, incoming_window=PLENTY, next_outgoing_id=0, outgoing_window=1
        )
    )
    frames += await ends(client, 2)
    assert [len(body) > BIG for body in bodies(frames)] == [False, True, False]


async def test_a_link_that_is_detached_in_the_middle(client: RawClient, session: Session) -> None:
    await begin_big(client)
    client.send(performative("detach", handle=0, closed=True), opened())
    await client.expect("detach")
    await until(session, ([1, 2, 3], Disposition.RELEASE))
    assert all(frame["more"] or frame["aborted"] for frame in client.passed if frame.name == "transfer")


async def test_a_session_that_is_ended_in_the_middle(client: RawClient, session: Session) -> None:
    await begin_big(client)
    client.send(performative("end"))
    await client.expect("end")
    await until(session, ([1, 2, 3], Disposition.RELEASE))
    assert all(frame["more"] or frame["aborted"] for frame in client.passed if frame.name == "transfer")


async def test_a_connection_that_is_lost_in_the_middle(client: RawClient, session: Session) -> None:
    await begin_big(client)
    client.abort()
    await until(session, ([1, 2], Disposition.FAIL), ([3], Disposition.RELEASE))


async def test_a_queue_that_ends_in_the_middle(client: RawClient, session: Session) -> None:
    """The client does not take what it has for the whole."""
    await begin_big(client)
    session.queue.port.stop(ErrorCode.NOT_FOUND, "deleted")
    client.send(opened())
    await client.expect("detach")
    said = [frame for frame in client.passed if frame.name == "transfer"]
    assert said[-1]["aborted"] and not any(frame["aborted"] for frame in said[:-1])


@pytest.mark.parametrize("is_settled", [True, False])
async def test_an_outcome_that_is_said_in_the_middle(
    client: RawClient, session: Session, is_settled: bool
) -> None:
    frames = await begin_big(client)
    client.say("disposition", role=True, first=0, last=1, settled=is_settled, state=composite("accepted"))
    await until(session, ([1], Disposition.ACCEPT))
    client.send(opened())
    frames += await ends(client, 2)
    assert [len(body) > BIG for body in bodies(frames)] == [False, True, False]
    await until(session, ([1], Disposition.ACCEPT), ([2], Disposition.ACCEPT))


@pytest.mark.parametrize(
    ("outcome", "settled"),
    [
        ("rejected", [([2], Disposition.REJECT), ([1, 3], Disposition.RELEASE)]),
        ("released", [([2], Disposition.RELEASE), ([1, 3], Disposition.RELEASE)]),
        ("accepted", [([1, 2, 3], Disposition.RELEASE)]),
    ],
)
@pytest.mark.parametrize("is_settled", [True, False])
async def test_what_is_said_in_the_middle_counts_though_the_link_ends_unless_it_accepts_what_is_not_there(
    client: RawClient,
    session: Session,
    outcome: str,
    settled: list[tuple[list[int], int]],
    is_settled: bool,
) -> None:
    await begin_big(client)
    client.say("disposition", role=True, first=1, settled=is_settled, state=composite(outcome))
    client.send(performative("detach", handle=0, closed=True), opened())
    await client.expect("detach")
    await until(session, *settled)


async def test_an_outcome_in_a_transaction_that_ends_before_the_rest_is_there(
    client: RawClient, session: Session
) -> None:
    frames = await begin_big(client)
    await client.attach_coordinator(1)
    transaction = codec.binary(await client.declare(1))
    said = composite("transactional_state", txn_id=transaction, outcome=composite("accepted"))
    client.say("disposition", role=True, first=1, settled=True, state=said)
    assert (await client.discharge(transaction[2:], 1)).name == "accepted"
    client.send(opened())
    frames += await ends(client, 2)
    assert [len(body) > BIG for body in bodies(frames)] == [False, True, False]
    assert not session.known.settled, "it is accepted in the transaction"


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_link_that_ends_when_the_middle_was_accepted_in_a_transaction(
    client: RawClient, session: Session, is_settled: bool
) -> None:
    await begin_big(client)
    await client.attach_coordinator(1)
    transaction = codec.binary(await client.declare(1))
    said = composite("transactional_state", txn_id=transaction, outcome=composite("accepted"))
    client.say("disposition", role=True, first=0, last=1, settled=is_settled, state=said)
    client.send(performative("detach", handle=0, closed=True), opened())
    await client.expect("detach")
    assert (await client.discharge(transaction[2:], 1)).name == "accepted"
    await until(session, ([3], Disposition.RELEASE))
    assert all(frame["more"] or frame["aborted"] for frame in client.passed if frame.name == "transfer")


def receiving(*sizes: int, **attach: Any) -> tuple[FakeTransport, ClientSocket]:
    """A client that takes all that its transport is given, and has asked for messages of these sizes."""
    worker, transport = ListenerRig(ProxySettings(brokers=("127.0.0.1:1",))).worker, FakeTransport()
    worker.nodes = stub_nodes(Session(*sizes))
    socket = worker.socket(None)
    transport.protocol = socket
    socket.connection_made(transport)
    socket.data_received(
        SASL_HEADER
        + performative("sasl_init", mechanism=codec.Symbol("ANONYMOUS"))
        + AMQP_HEADER
        + performative("open", container_id="big", max_frame_size=FRAME_BYTES)
        + begin(incoming_window=PLENTY)
        + attach_receiver("r", "queue", **attach)
        + credit(0, 10, incoming_window=PLENTY)
    )
    return transport, socket


async def longest_step(transport: FakeTransport, size: int) -> float:
    """Of those in which so many bytes are written, in seconds of processor time; then the client is gone."""
    longest = 0.0
    while transport.written < size:
        before = thread_time()
        await asyncio.sleep(0)
        longest = max(longest, thread_time() - before)
    transport.close()
    await asyncio.sleep(0.1)
    return longest


async def test_no_step_is_long_by_an_outcome_in_a_transaction_in_the_middle() -> None:
    transport, socket = receiving(31 * 1024 * 1024)
    while transport.written < 10 * FRAME_BYTES:
        await asyncio.sleep(0)
    said = composite("transactional_state", txn_id=codec.binary(b"none"), outcome=composite("accepted"))
    before = thread_time()
    socket.data_received(performative("disposition", role=True, first=0, settled=True, state=said))
    longest = thread_time() - before
    assert max(longest, await longest_step(transport, 31 * 1024 * 1024)) < STEP_SECONDS


async def test_a_transfer_of_the_client_in_the_middle_ends_the_connection(client: RawClient) -> None:
    """The engine takes it for one of ours."""
    await begin_big(client)
    client.transfer(codec.message(b"body"))
    assert await client.expect_end() == "amqp:not-allowed"


async def test_a_drain_in_the_middle_is_answered_behind_the_rest(client: RawClient) -> None:
    frames = await begin_big(client)
    client.send(credit(0, 10, drain=True, incoming_window=PLENTY, next_incoming_id=WINDOW))
    frames += await ends(client, 2)
    flow = await client.expect("flow", lambda frame: frame["link_credit"] == 0)
    assert flow["delivery_count"] == 10
    assert [len(body) > BIG for body in bodies(frames)] == [False, True, False]


async def test_a_big_delivery_that_is_settled_when_it_is_sent_is_so_with_its_end(
    client: RawClient, session: Session
) -> None:
    frames = await begin_big(client, **PRESETTLED)
    await until(session, ([1], Disposition.ACCEPT))
    client.say("disposition", role=True, first=1, last=1, settled=True, state=composite("released"))
    client.send(opened())
    frames += await ends(client, 2)
    assert [len(body) > BIG for body in bodies(frames)] == [False, True, False]
    last_of_each = [frame["settled"] for frame in frames if not frame["more"]]
    assert last_of_each == [True] * 3
    await until(session, ([1], Disposition.ACCEPT), ([2], Disposition.ACCEPT), ([3], Disposition.ACCEPT))


@pytest.mark.parametrize(
    "said", [performative("detach", handle=0, closed=True), None], ids=["detach", "lost"]
)
async def test_one_whose_link_ends_in_the_middle_goes_back(
    client: RawClient, session: Session, said: bytes | None
) -> None:
    await begin_big(client, **PRESETTLED)
    if said is None:
        client.abort()
        returned = [([2], Disposition.FAIL), ([3], Disposition.RELEASE)]
    else:
        client.send(said, opened())
        await client.expect("detach")
        returned = [([2, 3], Disposition.RELEASE)]
    await until(session, ([1], Disposition.ACCEPT), *returned)


async def test_one_that_is_void_in_the_middle_is_aborted_and_comes_again(
    client: RawClient, session: Session
) -> None:
    """Nobody asks the client whether it has it: it would have it twice."""
    frames = await begin_big(client, **PRESETTLED)
    for _ in session.queue.port.void(EPOCH, (QueuePosition(2), QueuePosition(3))):
        pass
    session.queue.port.deliver("queue", EPOCH, tuple(session.queue.messages[1:]))
    client.send(opened())
    frames += await ends(client, 3)
    ended = [frame["aborted"] for frame in frames if not frame["more"] or frame["aborted"]]
    assert [bool(is_aborted) for is_aborted in ended] == [False, True, False, False]
    assert [len(body) > BIG for body in bodies(frames)][-2:] == [True, False]
    await until(session, ([1], Disposition.ACCEPT), ([2], Disposition.ACCEPT), ([3], Disposition.ACCEPT))


async def test_no_more_is_begun_than_a_connection_has_room_for_and_the_rest_goes_back_in_time(
    client: RawClient, session: Session
) -> None:
    """Each link of a session that has no window asks for a big message."""
    links, limits = 10, ProxyLimits()
    del session.queue.messages[0], session.queue.messages[-1]
    begun_max = (limits.waiting_bytes_max + limits.output_bytes_max) // BIG + 1
    for handle in range(links):
        await client.attach_receiver(f"r{handle}", "queue", handle)
    client.send(*[credit(handle, 1, incoming_window=WINDOW) for handle in range(links)])
    frames = await transfers(client, WINDOW)
    await in_steps(session.worker.give_back_late(asyncio.get_running_loop().time() + 1_000))
    given_back = len(session.known.settled)
    assert session.known.settled == [([2], Disposition.RELEASE)] * given_back
    assert links - begun_max <= given_back < links
    client.send(opened())
    frames += await ends(client, links - given_back)
    whole = [len(body) > BIG for handle in range(links) for body in bodies(frames, handle)]
    assert whole == [True] * (links - given_back)
    assert session.worker.deliveries.left == limits.deliveries_bytes_max


@pytest.mark.parametrize("is_presettled", [False, True])
async def test_no_step_is_long_by_a_big_delivery(is_presettled: bool) -> None:
    transport, _ = receiving(20 * 1024 * 1024, 33 * 1024 * 1024, **(PRESETTLED if is_presettled else {}))
    assert await longest_step(transport, 53 * 1024 * 1024) < STEP_SECONDS


@pytest.mark.parametrize("limit", ["waiting_bytes_max", "deliveries_bytes_max"])
async def test_what_a_connection_or_its_worker_has_no_room_for_goes_back(limit: str) -> None:
    limits = ProxyLimits(**{limit: 2 * BIG})
    session = Session(10, BIG, BIG, BIG)
    async with (
        serving(limits, session) as proxy,
        await RawClient.opened(proxy.address, max_frame_size=FRAME_BYTES) as client,
    ):
        await client.begin(incoming_window=WINDOW)
        await client.attach_receiver("r", "queue")
        client.send(credit(0, 10, incoming_window=WINDOW))
        await transfers(client, WINDOW)
        await until(session, ([4], Disposition.RELEASE))
