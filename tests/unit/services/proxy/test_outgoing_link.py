"""A consumer's link on the real engine: its client is Proton's, its broker writes down what it is told."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from proton import Collector, Connection, Delivery, Described, Event, Link, Sender, Transport, ulong

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.amqp.sections import EMPTY_HEADER
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.amqp_transaction import AmqpTransaction, Work
from services.proxy.client_deliveries import Source
from services.proxy.core.conditions import Condition
from services.proxy.engine import Engine
from services.proxy.engine_words import EngineEvent, StateCode
from services.proxy.outgoing_link import OutgoingLink
from services.proxy.reclaiming import Reclaims
from services.proxy.returning import Returning
from services.proxy.settings import ProxyLimits
from services.proxy.traffic import Traffic

EPOCH = Epoch(1)
NAME = b"transaction"


class Broker:
    """A session in a set with its batches: nothing is confirmed before the test says so."""

    def __init__(self) -> None:
        self.settled: list[tuple[tuple[QueuePosition, ...], int]] = []
        self.epochs: list[Epoch] = []
        """Of the deliveries that were settled."""
        self.confirmations: list[Confirmation] = []
        self.lost_sessions = 0

    def consume(self, *_: object, **__: object) -> int:
        return 1

    def stop_consuming(self, _: int) -> None:
        """The test is over."""

    def grant(self, *_: object) -> None:
        """Credit is the test's."""

    def feed(self, _: object) -> None:
        """Nothing else is asked for."""

    def settle(
        self,
        _queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        disposition: int,
        _transaction: object,
        _excluded_consumer: int = 0,
    ) -> Confirmation:
        self.settled.append((tuple(positions), disposition))
        self.epochs.append(epoch)
        self.confirmations.append(asyncio.get_running_loop().create_future())
        return self.confirmations[-1]


class RolledBackWork:
    """A transaction that never commits; its accept is under way."""

    def __init__(self, broker: Broker) -> None:
        self.state = TransactionState.OPEN
        self._broker = broker

    async def accept_deliveries(
        self, _place: object, queue: str, epoch: Epoch, positions: Sequence[QueuePosition]
    ) -> Confirmation:
        return self._broker.settle(queue, epoch, positions, Disposition.ACCEPT, None)

    async def rollback(self) -> None:
        self.state = TransactionState.ROLLED_BACK


class Rig:
    """A client with one receiving link, the engine, and the link on it; also what the link needs of its connection."""

    def __init__(self, reclaims: Reclaims | None = None) -> None:
        """`reclaims`: of a worker that has other clients as well."""
        self.broker = Broker()
        self.reclaims = Reclaims() if reclaims is None else reclaims
        self.returning = Returning()
        self.traffic = Traffic()
        self.transactions: dict[bytes, AmqpTransaction] = {}
        self.received: list[Delivery] = []
        self.heard: list[tuple[str, int, bool]] = []
        """What the client heard of its deliveries: (tag, state, whether it is settled)."""
        self._client, self._collector = Connection(), Collector()
        self._client.collect(self._collector)
        self._transport = Transport(Transport.CLIENT)
        self._transport.bind(self._client)
        self._engine = Engine(ProxyLimits())
        self._client.open()
        session = self._client.session()
        session.open()
        self._receiver = session.receiver("r")
        self._receiver.source.address = "q"
        self._receiver.open()
        self._receiver.flow(10)
        self._next = 0
        self.link: OutgoingLink | None = None
        self.exchange()

    def exchange(self) -> None:
        """Carries bytes until none are left."""
        while True:
            to_server = self._transport.peek(self._transport.pending()) if self._transport.pending() else b""
            if to_server:
                self._transport.pop(len(to_server))
                for kind, _, what in self._engine.feed(to_server):
                    self._handle(kind, what)
            if self.link is not None:
                self.link.flush()
            to_client = b"".join(bytes(part) for part in self._engine.output())
            if to_client:
                self._transport.push(to_client)
            while (event := self._collector.peek()) is not None:
                if event.type is Event.DELIVERY and event.delivery is not None:
                    self._hear(event.delivery)
                self._collector.pop()
            if not to_server and not to_client:
                return

    def _handle(self, kind: EngineEvent, what: Any) -> None:
        if kind is EngineEvent.DELIVERY and self.link is not None:
            self.link.disposition(what)
        elif kind is EngineEvent.OTHER and what.type is Event.LINK_REMOTE_OPEN:
            self._engine.connection.open()
            what.link.session.open()
            what.link.open()
            source = Source("q", cast(SetSession, self.broker), cast(CommandBatches, self.broker))
            assert isinstance(what.link, Sender)
            self.link = OutgoingLink(self, what.link, source, ProxyLimits(), is_presettled=False)
            self.link.open()

    def _hear(self, delivery: Delivery) -> None:
        if delivery.readable:
            self._receiver.recv(delivery.pending)
            self._receiver.advance()
            self.received.append(delivery)
        else:
            self.heard.append((delivery.tag, int(delivery.remote_state), delivery.settled))

    def deliver(self) -> Delivery:
        """One message from the broker; returns what the client has of it."""
        self._next += 1
        self.deliver_again(EPOCH, self._next)
        return self.received[-1]

    def deliver_again(self, epoch: Epoch, *positions: int) -> None:
        """These messages from the broker, whoever had them before."""
        messages = [
            DeliveredMessage(QueuePosition(one), EMPTY_HEADER + b"\x00\x53\x75\xa0\x01", b"x", 0, 0, True)
            for one in positions
        ]
        assert self.link is not None
        self.link.deliver("q", epoch, tuple(messages))
        self.exchange()

    def void(self, *positions: int, epoch: Epoch = EPOCH) -> None:
        """The epoch is over in which these were delivered, or their session is lost."""
        assert self.link is not None
        self.link.void(epoch, tuple(map(QueuePosition, positions)))

    def begin(self) -> AmqpTransaction:
        """The client's transaction."""
        transaction = AmqpTransaction(NAME, cast(Work, RolledBackWork(self.broker)), 0)
        self.transactions[NAME] = transaction
        return transaction

    # --- Owner ---

    def transaction(self, name: bytes) -> AmqpTransaction | None:
        return self.transactions.get(name)

    def room(self, _: object) -> int:
        return 1 << 20

    def held_up(self, _: OutgoingLink) -> None:
        """There is room."""

    def wrote(self) -> None:
        """`exchange` takes it."""

    def touched(self, link: OutgoingLink) -> None:
        """`exchange` flushes."""

    def end_link(self, link: Link, condition: Condition) -> None:
        raise AssertionError(condition)


def say_in_transaction(delivery: Delivery, outcome: StateCode) -> None:
    """The client's outcome of a delivery, if its transaction commits."""
    fields: list[Any] = [NAME, Described(ulong(outcome), [])]
    delivery.local.data = fields
    delivery.update(StateCode.TRANSACTIONAL)


async def test_delivery_that_its_client_settled_meanwhile_is_not_answered() -> None:
    rig = Rig()
    first = rig.deliver()
    first.update(Delivery.ACCEPTED)
    rig.exchange()
    first.settle()
    rig.exchange()
    second = rig.deliver()
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == []
    second.update(Delivery.ACCEPTED)
    second.settle()
    rig.exchange()
    assert rig.broker.settled == [
        ((QueuePosition(1),), Disposition.ACCEPT),
        ((QueuePosition(2),), Disposition.ACCEPT),
    ]


async def test_retirement_that_is_confirmed_behind_the_end_of_its_transaction_is_not_answered() -> None:
    rig = Rig()
    transaction = rig.begin()
    first = rig.deliver()
    say_in_transaction(first, StateCode.ACCEPTED)
    rig.exchange()
    await transaction.rollback()
    rig.exchange()
    assert rig.heard == [("1", 0, True)]
    first.settle()
    second = rig.deliver()
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == [("1", 0, True)]
    assert not second.settled and second.remote_state == 0


async def test_accept_that_its_client_leaves_to_be_settled_is_settled_when_confirmed() -> None:
    rig = Rig()
    rig.deliver().update(Delivery.ACCEPTED)
    rig.exchange()
    assert rig.heard == []
    rig.broker.confirmations[0].set_result(1)
    await asyncio.sleep(0)
    rig.exchange()
    assert rig.heard == [("1", StateCode.ACCEPTED, True)]


async def test_delivery_that_comes_again_after_a_failover_is_the_one_that_the_client_has() -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1, 2)
    rig.deliver_again(Epoch(2), 1, 2, 3)
    assert len(rig.received) == 3
    for delivery in (first, second):
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(1), QueuePosition(2)), Disposition.ACCEPT)]
    assert rig.broker.epochs == [Epoch(2)]


async def test_delivery_of_which_the_client_has_spoken_meanwhile_comes_again() -> None:
    rig = Rig()
    first = rig.deliver()
    rig.void(1)
    first.update(Delivery.ACCEPTED)
    first.settle()
    rig.exchange()
    assert len(rig.reclaims) == 0
    rig.deliver_again(EPOCH, 1)
    assert len(rig.received) == 2
    assert rig.broker.settled == []
    rig.received[-1].update(Delivery.ACCEPTED)
    rig.received[-1].settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


@pytest.mark.parametrize(
    "state", [StateCode.ACCEPTED, StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED]
)
async def test_what_the_client_says_of_a_void_delivery_is_answered_and_not_told(
    state: StateCode,
) -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1)
    for delivery in (first, second):
        delivery.local.undeliverable = state == StateCode.MODIFIED
        delivery.update(state)
    rig.exchange()
    assert [positions for positions, _ in rig.broker.settled] == [(QueuePosition(2),)]
    assert rig.heard[0] == ("1", 0, True)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_void_delivery_is_not_given_back_when_the_link_ends(is_lost: bool) -> None:
    rig = Rig()
    for _ in range(2):
        rig.deliver()
    rig.void(1)
    assert rig.link is not None
    rig.link.end(is_lost=is_lost)
    disposition = Disposition.FAIL if is_lost else Disposition.RELEASE
    assert rig.broker.settled == [((QueuePosition(2),), disposition)]
    assert len(rig.reclaims) == 0


async def test_void_delivery_that_did_not_come_again_is_not_another_that_did() -> None:
    rig = Rig()
    first = rig.deliver()
    rig.void(1)
    assert len(rig.reclaims) == 1
    rig.deliver_again(Epoch(2), 5)
    for delivery in (first, rig.received[-1]):
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(5),), Disposition.ACCEPT)]
    assert rig.broker.epochs == [Epoch(2)]


async def test_delivery_that_came_again_to_another_link_is_void_when_the_session_says_so_there() -> None:
    reclaims = Reclaims()
    rig, other = Rig(reclaims), Rig(reclaims)
    first, second = rig.deliver(), rig.deliver()
    rig.void(1, 2)
    other.deliver_again(Epoch(2), 1, 2)
    assert other.received == []
    rig.begin()
    say_in_transaction(second, StateCode.REJECTED)
    rig.exchange()
    other.void(1, 2, epoch=Epoch(2))
    first.update(Delivery.ACCEPTED)
    rig.exchange()
    await rig.transactions[NAME].rollback()
    assert rig.broker.settled == []
    rig.exchange()
    assert sorted(rig.heard) == [("1", 0, True), ("2", 0, True)]


# --- in transactions ---


@pytest.mark.parametrize("is_void_before", [True, False])
async def test_void_delivery_is_not_accepted_in_a_transaction_and_fails_its_commit(
    is_void_before: bool,
) -> None:
    rig = Rig()
    transaction = rig.begin()
    posted = asyncio.Event()
    transaction.wait_for(posted)
    first, second = rig.deliver(), rig.deliver()
    if is_void_before:
        rig.void(1)
    for delivery in (first, second):
        say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    if not is_void_before:
        rig.void(1)
    posted.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    # The other one goes back to the queue.
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    rig.exchange()
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


@pytest.mark.parametrize("is_void_before", [True, False])
@pytest.mark.parametrize("outcome", [StateCode.REJECTED, StateCode.RELEASED, StateCode.MODIFIED])
async def test_end_of_a_transaction_gives_back_nothing_void(outcome: StateCode, is_void_before: bool) -> None:
    rig = Rig()
    transaction = rig.begin()
    first, second = rig.deliver(), rig.deliver()
    if is_void_before:
        rig.void(1)
    for delivery in (first, second):
        say_in_transaction(delivery, outcome)
    rig.exchange()
    if not is_void_before:
        rig.void(1)
    await transaction.rollback()
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    rig.exchange()
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


async def test_void_delivery_in_a_transaction_that_is_not_open_is_answered_and_not_told() -> None:
    rig = Rig()
    first, second = rig.deliver(), rig.deliver()
    rig.void(1)
    for delivery in (first, second):
        say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    assert rig.broker.settled == [((QueuePosition(2),), Disposition.RELEASE)]
    assert rig.heard == [("1", 0, True), ("2", 0, True)]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SESSION, ErrorCode.UNAVAILABLE])
@pytest.mark.parametrize("lost_sessions", [0, 1])
async def test_accept_that_was_under_way_when_the_session_was_lost_is_not_given_back(
    code: ErrorCode, lost_sessions: int
) -> None:
    rig = Rig()
    rig.begin()
    say_in_transaction(rig.deliver(), StateCode.ACCEPTED)
    rig.exchange()
    await asyncio.sleep(0)
    rig.broker.lost_sessions = lost_sessions
    rig.broker.confirmations[0].set_exception(Rejected(code, "refused"))
    await asyncio.sleep(0)
    assert rig.broker.settled[1:] == [((QueuePosition(1),), Disposition.RELEASE)] * (1 - lost_sessions)
