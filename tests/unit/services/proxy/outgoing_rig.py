"""A consumer's link on the real engine: its client is Proton's, its broker writes down what it is told."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from cproton_ffi import lib
from proton import Collector, Connection, Delivery, Described, Event, Link, Sender, Transport, ulong

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.amqp.sections import EMPTY_HEADER
from lockstep.core.commands import Disposition
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.amqp_transaction import AmqpTransaction, Work
from services.proxy.client_deliveries import Source
from services.proxy.core.conditions import Condition
from services.proxy.delivery_room import DeliveryRoom
from services.proxy.engine import Engine
from services.proxy.engine_words import EngineEvent, StateCode
from services.proxy.outgoing_link import OutgoingLink
from services.proxy.reclaiming import Reclaims
from services.proxy.returning import Returning
from services.proxy.settings import ProxyLimits
from services.proxy.traffic import Traffic
from services.proxy.worker_room import WorkerRoom

EPOCH = Epoch(1)
NAME = b"transaction"
_PIECE_BYTES = 4096
"""Proton's engine takes no more at once."""


class Broker:
    """A session in a set with its batches: nothing is confirmed before the test says so."""

    def __init__(self) -> None:
        self.settled: list[tuple[tuple[QueuePosition, ...], int]] = []
        self.epochs: list[Epoch] = []
        """Of the deliveries that were settled."""
        self.excluded: list[int] = []
        """Consumers that do not get them again."""
        self.annotations: list[bytes] = []
        self.confirmations: list[Confirmation] = []
        self.lost_sessions = 0
        self.untold_losses = 0
        """Of these, of which the link has still to hear."""
        self.over_before = Epoch(0)
        """What came in epochs before is void, and whoever has it is still to be told."""
        self.begun_after: list[QueuePosition | None] = []
        """Of each consumer that was opened: behind which position."""
        self.granted = 0
        """Credit of the last one, but for what was delivered."""
        self.drains = 0
        self.stopped = 0
        self.settled_before_end = 0
        """So much was settled before a consumer ended."""
        self.ending: asyncio.Future[None] | None = None
        """Of a consumer whose end is behind what was rejected."""

    def is_over(self, epoch: Epoch) -> bool:
        return epoch < self.over_before

    @property
    def losses_told(self) -> int:
        return self.lost_sessions - self.untold_losses

    @property
    def is_telling_loss(self) -> bool:
        return bool(self.untold_losses)

    def consume(self, *_: object, after: QueuePosition | None = None, **__: object) -> int:
        self.begun_after.append(after)
        self.granted = 0
        return len(self.begun_after)

    def stop_consuming(self, _: int, first: Sequence[asyncio.Future[Any]] = ()) -> asyncio.Future[Any] | None:
        """It hears nothing more."""
        if not first:
            self._end()
            return self.ending
        ending = asyncio.gather(*first, return_exceptions=True)
        ending.add_done_callback(lambda _: self._end())
        return ending

    def _end(self) -> None:
        self.stopped += 1
        self.settled_before_end = len(self.settled)

    def grant(self, _: int, credit: int) -> None:
        self.granted += credit

    def drain(self, _: int) -> None:
        self.drains += 1

    def settle(
        self,
        _queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        disposition: int,
        _transaction: object,
        excluded_consumer: int = 0,
        annotations: bytes = b"",
    ) -> Confirmation:
        self.annotations.append(annotations)
        self.settled.append((tuple(positions), disposition))
        self.epochs.append(epoch)
        self.excluded.append(excluded_consumer)
        self.confirmations.append(asyncio.get_running_loop().create_future())
        return self.confirmations[-1]


class RecordedWork:
    """A transaction; its accept is under way."""

    def __init__(self, broker: Broker) -> None:
        self.state = TransactionState.OPEN
        self.begins = asyncio.Event()
        """Cleared, it waits for a coordinator before it can do anything in the set."""
        self.begins.set()
        self._broker = broker

    async def accept_deliveries(
        self,
        _place: object,
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        check: Callable[[], None],
    ) -> Confirmation:
        await self.begins.wait()
        check()
        return self._broker.settle(queue, epoch, positions, Disposition.ACCEPT, None)

    async def commit(self) -> None:
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        self.state = TransactionState.ROLLED_BACK


class Rig:
    """A client with one receiving link, the engine, and the link on it; also what the link needs of its connection."""

    def __init__(
        self,
        reclaims: Reclaims | None = None,
        *,
        is_browser: bool = False,
        credit: int = 10,
        message_bytes_max: int = 0,
        deliveries: DeliveryRoom | None = None,
    ) -> None:
        """`reclaims`: of a worker that has other clients as well. `message_bytes_max`: as the client takes them, 0: any.
        `deliveries`: the connection's room for what waits, None: plenty.
        """
        self.broker = Broker()
        self.reclaims = Reclaims() if reclaims is None else reclaims
        self.returning = Returning()
        self.deliveries = deliveries or DeliveryRoom(WorkerRoom(1 << 30), 1 << 30)
        self.rests = DeliveryRoom(WorkerRoom(1 << 30), 1 << 30)
        self.unsettled = DeliveryRoom(WorkerRoom(1 << 30), 1 << 30)
        self.refusals: list[str] = []
        self.works_run: list[asyncio.Future[None]] = []
        self.is_read = True
        """The client takes what is written."""
        self.traffic = Traffic()
        self.deliveries_sent = 0
        self.transactions: dict[bytes, AmqpTransaction] = {}
        self.works: list[RecordedWork] = []
        """Behind them, in the order of their begins."""
        self.received: list[Delivery] = []
        self.heard: list[tuple[str, int, bool]] = []
        """What the client heard of its deliveries: (tag, state, whether it is settled)."""
        self.ended: list[Condition] = []
        """Why the link was closed."""
        self._is_browser = is_browser
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
        self._receiver.max_message_size = message_bytes_max
        self._receiver.open()
        self._receiver.flow(credit)
        self._next = 0
        self.link: OutgoingLink | None = None
        self.exchange()

    def exchange(self) -> None:
        """Carries bytes until none are left."""
        while True:
            to_server = b""
            while self._transport.pending() > 0:
                piece = self._transport.peek(self._transport.pending()) or b""
                self._transport.pop(len(piece))
                to_server += piece
            if to_server:
                for kind, _, what in self._engine.feed(to_server):
                    self._handle(kind, what)
            if self.link is not None:
                self.link.flush()
            to_client = b"".join(bytes(part) for part in self._engine.output())
            for place in range(0, len(to_client), _PIECE_BYTES):
                self._transport.push(to_client[place : place + _PIECE_BYTES])
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
            session, batches = cast(SetSession, self.broker), cast(CommandBatches, self.broker)
            source = Source("q", session, batches, is_browser=self._is_browser)
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
        self.deliver_messages(epoch, *[(one, b"x") for one in positions])

    def deliver_messages(self, epoch: Epoch, *messages: tuple[int, bytes]) -> None:
        """Messages with these bodies from the broker."""
        delivered = [
            DeliveredMessage(QueuePosition(one), EMPTY_HEADER + _data_head(len(body)), body, 0, 0, True)
            for one, body in messages
        ]
        assert self.link is not None
        self.link.deliver("q", epoch, tuple(delivered))
        self.exchange()

    def void(self, *positions: int, epoch: Epoch = EPOCH) -> None:
        """The epoch is over in which these were delivered, or their session is lost."""
        assert self.link is not None
        for _ in self.link.void(epoch, tuple(map(QueuePosition, positions))):
            pass

    def begin(self) -> AmqpTransaction:
        """The client's transaction."""
        self.works.append(RecordedWork(self.broker))
        transaction = AmqpTransaction(NAME, cast(Work, self.works[-1]), 0)
        self.transactions[NAME] = transaction
        return transaction

    # --- Owner ---

    def transaction(self, name: bytes) -> AmqpTransaction | None:
        return self.transactions.get(name)

    def room(self, _: object) -> int:
        return 1 << 20 if self.is_read else 0

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.works_run.append(asyncio.ensure_future(work))

    def refused(self, limit: str, text: str) -> None:
        self.refusals.append(limit)

    def given(self, _: object, size: int) -> None:
        """`exchange` takes all of it."""

    def held_up(self, _: OutgoingLink) -> None:
        """The test resumes it."""

    def wrote(self) -> None:
        """`exchange` takes it."""

    def touched(self, link: OutgoingLink) -> None:
        """`exchange` flushes."""

    def flush_links(self) -> None:
        """There is no other."""
        if self.link is not None:
            self.link.flush()

    def tell(self, event: str, text: str) -> None:
        """Nobody reads the log."""

    def end_link(self, link: Link, condition: Condition) -> None:
        self.ended.append(condition)


def _data_head(size: int) -> bytes:
    """Of a data section with so many bytes."""
    return b"\x00\x53\x75\xa0%c" % size if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")


def say_in_transaction(
    delivery: Delivery, outcome: StateCode | None, fields: Sequence[Any] = (), name: bytes = NAME
) -> None:
    """The client's outcome of a delivery, if its transaction commits; None: it says none as yet."""
    state: list[Any] = [name]
    if outcome is not None:
        state.append(Described(ulong(outcome), list(fields)))
    # Proton's Python adds to what was said before.
    lib.pn_data_clear(lib.pn_disposition_data(lib.pn_delivery_local(delivery._impl)))
    delivery.local.data = state
    delivery.update(StateCode.TRANSACTIONAL)
