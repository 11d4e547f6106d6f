"""A link on which a client receives: a consumer or browser of a queue, its credit, and what becomes of its deliveries (2.6.7,
3.4).

Law: what the broker was asked for, what waits here and what the client may still take are in balance: the proxy takes only
what its client has credit for, and gives back what the client does not take in time. Nothing is accepted that the client has
not.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from proton import Link, Sender

from lockstep.client import session_events as e
from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.set_session import SetSession
from lockstep.core.amqp.sections import join
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.core.conditions import RESOURCE_DELETED, Condition, condition_of_code
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle, StateCode, transactional
from services.proxy.reclaiming import Reclaims
from services.proxy.settings import ProxyLimits

_DISPOSITIONS: dict[int, int] = {
    StateCode.ACCEPTED: Disposition.ACCEPT,
    StateCode.REJECTED: Disposition.REJECT,
    StateCode.RELEASED: Disposition.RELEASE,
    StateCode.MODIFIED: Disposition.FAIL,
}
_SIZE_FIRST = 1024
"""Bytes that a message is taken for before any has come."""


class Owner(Protocol):
    """What a receiving client's link needs of its connection."""

    def transaction(self, name: bytes) -> AmqpTransaction | None: ...
    @property
    def reclaims(self) -> Reclaims: ...
    def room(self, link: Handle) -> int: ...
    def held_up(self, link: "OutgoingLink") -> None: ...
    def wrote(self) -> None: ...
    def touched(self, link: "OutgoingLink") -> None: ...
    def end_link(self, link: Link, condition: Condition) -> None: ...


class Source(NamedTuple):
    """What a link receives of."""

    queue: str
    session: SetSession
    batches: CommandBatches
    selector: str = ""
    is_browser: bool = False
    is_exclusive: bool = False


class _Owed:
    """A delivery whose client waits for our settling it; the client may settle it before, or its transaction's end may."""

    __slots__ = ("handle",)

    def __init__(self, handle: Handle) -> None:
        self.handle: Handle | None = handle
        """None: it is settled. The engine uses a settled delivery's memory for the next one, so its handle must not be used."""


class OutgoingLink:
    """Lives from its attach to its end; a consumer's port of the session in the set, driven by it and by the connection."""

    def __init__(
        self, owner: Owner, link: Sender, source: Source, limits: ProxyLimits, *, is_presettled: bool
    ) -> None:
        self.source = source
        self._owner = owner
        self._link = link
        self._handle = path.handle_of(link)
        self._limits = limits
        self._is_presettled = is_presettled
        self._consumer = 0
        self._asked = 0
        """Credit that the broker has of this consumer."""
        self._waiting: deque[tuple[Epoch, DeliveredMessage]] = deque()
        """Arrived, and not yet sent: the client has no credit or room for them."""
        self._waiting_since = 0.0
        self._sent: dict[Handle, tuple[Epoch, QueuePosition]] = {}
        """Deliveries that the client has and that are not settled."""
        self._stale: dict[QueuePosition, Handle] = {}
        """Those of them whose epoch is over, as far as they did not come again."""
        self._owed: dict[Handle, _Owed] = {}
        """Deliveries of which the client has said what becomes of them, and that wait for our settling them."""
        self._settles: dict[tuple[Epoch, int], list[tuple[QueuePosition, _Owed | None]]] = {}
        """Outcomes of this turn: (epoch, disposition) -> positions, each with the delivery that waits for its confirmation."""
        self._excluded: dict[tuple[Epoch, int], list[QueuePosition]] = {}
        self._retired: dict[tuple[bytes, Epoch], list[tuple[QueuePosition, _Owed | None]]] = {}
        """The same inside transactions."""
        self._next_tag = 0
        self._size = _SIZE_FIRST
        """Moving average of a message's bytes."""
        self._is_draining_broker = False
        self._must_drain_again = False
        """The client wants to be drained, and the drain under way was not asked for that."""
        self._is_over = False

    # --- life ---

    def open(self) -> None:
        """Begins to consume, without credit."""
        source = self.source
        self._consumer = source.session.consume(
            self,
            source.queue,
            0,
            source.is_exclusive,
            selector=source.selector,
            is_browser=source.is_browser,
        )

    def end(self, *, is_lost: bool) -> None:
        """The link is gone; what its client has not settled goes back: with a failed delivery more if the client is `is_lost`."""
        if self._is_over:
            return
        self._is_over = True
        self.source.session.stop_consuming(self._consumer)
        if self.source.is_browser:
            return
        self._owner.reclaims.forget(self.source.queue, self._stale, self)
        held: dict[Epoch, list[QueuePosition]] = {}
        for epoch, message in self._waiting:
            held.setdefault(epoch, []).append(message.position)
        sent: dict[Epoch, list[QueuePosition]] = {} if is_lost else held
        for epoch, position in self._sent.values():
            sent.setdefault(epoch, []).append(position)
        self._waiting.clear()
        self._sent.clear()
        for epoch, positions in held.items():
            self._give(epoch, positions, Disposition.RELEASE)
        for epoch, positions in sent.items() if is_lost else ():
            self._give(epoch, positions, Disposition.FAIL)

    # --- credit ---

    def flow(self) -> None:
        """The client changed its credit, or wants it drained."""
        self._pump()
        if path.is_draining(self._handle):
            self._drain_for_client()
        else:
            self._balance()

    def _balance(self) -> None:
        """Asks the broker for what the client can take; what was asked too much is asked back."""
        if self._is_over or self._is_draining_broker:
            return
        credit = path.credit(self._handle)
        surplus = self._asked + len(self._waiting) - credit
        if surplus > 0 and self._asked:
            self._drain_broker()
            return
        missing = min(-surplus, self._most() - self._asked - len(self._waiting))
        if missing <= 0 or missing < self._asked:
            return
        if self._owner.room(self._handle) > 0:
            self._grant(missing)
        else:
            self._owner.held_up(self)

    def _drain_for_client(self) -> None:
        """Everything that the client can take and that is there, and then the rest of its credit back (2.6.7)."""
        if self._is_draining_broker:
            self._must_drain_again = True
            return
        missing = min(path.credit(self._handle), self._most()) - self._asked - len(self._waiting)
        if missing > 0:
            self._grant(missing)
        self._drain_broker()

    def _most(self) -> int:
        """Messages that may be on their way here at once."""
        return min(self._limits.delivery_credit_max, max(1, self._limits.delivery_bytes_max // self._size))

    def _grant(self, count: int) -> None:
        self._asked += count
        self.source.session.feed(e.Grant(self._consumer, count))

    def _drain_broker(self) -> None:
        if not self._is_draining_broker:
            self._is_draining_broker = True
            self.source.session.feed(e.Drain(self._consumer))

    # --- what the session in the set says (ConsumerPort) ---

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        self._asked -= len(messages)
        if not self.source.is_browser:
            messages = self._owner.reclaims.take(queue, epoch, messages)
        if not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting.extend([(epoch, message) for message in messages])
        self._pump()
        self._balance()

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        self._asked += len(positions)
        gone = set(positions)
        self._waiting = deque(
            (its_epoch, message)
            for its_epoch, message in self._waiting
            if its_epoch != epoch or message.position not in gone
        )
        stale = {
            position: handle
            for handle, (its_epoch, position) in self._sent.items()
            if its_epoch == epoch and position in gone
        }
        self._stale.update(stale)
        self._owner.reclaims.expect(self.source.queue, stale, self)
        self._balance()

    def reclaim(self, epoch: Epoch, position: QueuePosition) -> bool:
        """A message is delivered again that its client may still have; False: it has not."""
        handle = self._stale.pop(position, None)
        if handle is None or self._sent.get(handle, (epoch, 0))[1] != position:
            return False
        self._sent[handle] = epoch, position
        return True

    def drained(self) -> None:
        unused, self._asked = self._asked, 0
        must_drain_again, self._must_drain_again = self._must_drain_again, False
        self._is_draining_broker = False
        if self._is_over:
            return
        self._pump()
        if not path.is_draining(self._handle):
            self._balance()
        elif self._waiting:
            pass  # There is no room for it: `resume` goes on.
        elif path.credit(self._handle) and (must_drain_again or not unused):
            self._drain_for_client()
        else:
            path.drained(self._handle)
            self._owner.wrote()

    def stop(self, code: ErrorCode, message: str) -> None:
        if self._is_over:
            return
        condition = condition_of_code(code, message)
        if code is ErrorCode.NOT_FOUND:
            condition = Condition(RESOURCE_DELETED, message)
        self._owner.end_link(self._link, condition)

    # --- sending ---

    def resume(self) -> None:
        """There is room again."""
        self.flow()

    def _pump(self) -> None:
        """Sends what waits, as far as the client's credit and its socket go."""
        waiting = self._waiting
        if not waiting or self._is_over:
            return
        count = min(len(waiting), path.credit(self._handle))
        if count <= 0:
            return
        handle, now_ms, size = self._handle, int(time.time() * 1000), self._size
        is_settled, is_browser = self._is_presettled, self.source.is_browser
        accepted: dict[Epoch, list[QueuePosition]] = {}
        room, sent, tag, gave = self._owner.room(handle), self._sent, self._next_tag, 0
        while count > 0 and gave < room:
            epoch, message = waiting.popleft()
            data = join(
                message.properties,
                message.body,
                delivery_count=message.delivery_count,
                expires_ms=message.expires_ms,
                is_durable=message.is_durable,
                now_ms=now_ms,
            )
            length = len(data)
            gave += length
            size += (length - size) // 8
            tag += 1
            delivery = path.send(handle, b"%d" % tag, data, is_settled)
            if not is_settled:
                sent[delivery] = epoch, message.position
            elif not is_browser:
                accepted.setdefault(epoch, []).append(message.position)
            count -= 1
        self._size, self._next_tag = max(size, 64), tag
        if count > 0:
            self._owner.held_up(self)
        for epoch, positions in accepted.items():
            self._give(epoch, positions, Disposition.ACCEPT)
        if gave:
            self._owner.wrote()

    def give_back_late(self, now: float) -> None:
        """Gives back what has waited for its client for too long."""
        if not self._waiting or now - self._waiting_since < self._limits.hold_seconds:
            return
        if self.source.is_browser:
            return  # Copies: nobody misses them, and the broker would not show them again.
        held: dict[Epoch, list[QueuePosition]] = {}
        for epoch, message in self._waiting:
            held.setdefault(epoch, []).append(message.position)
        self._waiting.clear()
        for epoch, positions in held.items():
            self._give(epoch, positions, Disposition.RELEASE)
        self._balance()

    # --- outcomes ---

    def disposition(self, delivery: Handle) -> bool:
        """The client said something of a delivery; False: it is none of ours."""
        held = self._sent.get(delivery)
        if held is None:
            if path.has_unsent(self._handle):
                return False
            if path.is_settled(delivery):
                if (owed := self._owed.pop(delivery, None)) is not None:
                    owed.handle = None
                path.settle(delivery)
            return True
        self._disposition(delivery, *held)
        return True

    def _disposition(self, delivery: Handle, epoch: Epoch, position: QueuePosition) -> None:
        state, is_settled = path.remote_state(delivery), path.is_settled(delivery)
        if not is_settled and state in (0, StateCode.RECEIVED):
            return
        if state == StateCode.TRANSACTIONAL:
            self._retire(delivery, epoch, position, is_settled)
            return
        disposition = _DISPOSITIONS.get(state, Disposition.RELEASE)
        del self._sent[delivery]
        if self.source.is_browser:
            path.settle(delivery)
            self._owner.wrote()
            return
        if state == StateCode.MODIFIED:
            has_failed, is_excluded = path.remote_modified(delivery)
            disposition = Disposition.FAIL if has_failed else Disposition.RELEASE
            if is_excluded:
                self._excluded.setdefault((epoch, disposition), []).append(position)
                path.settle(delivery)
                self._owner.touched(self)
                return
        waiting = self._settle_or_owe(delivery, is_settled)
        self._settles.setdefault((epoch, disposition), []).append((position, waiting))
        self._owner.touched(self)

    def _retire(self, delivery: Handle, epoch: Epoch, position: QueuePosition, is_settled: bool) -> None:
        """An outcome inside a transaction (4.4.2)."""
        try:
            said = path.remote_transaction(delivery)
        except ValueError:
            said = None
        found = self._owner.transaction(said.transaction) if said is not None else None
        del self._sent[delivery]
        if said is None or found is None:
            # Of no transaction that is open: it did not happen, and the message is free again.
            path.settle(delivery)
            self._settles.setdefault((epoch, Disposition.RELEASE), []).append((position, None))
            self._owner.touched(self)
            return
        waiting = self._settle_or_owe(delivery, is_settled)
        if said.outcome == StateCode.ACCEPTED:
            self._retired.setdefault((said.transaction, epoch), []).append((position, waiting))
            self._owner.touched(self)
            return
        disposition = _DISPOSITIONS.get(said.outcome, Disposition.RELEASE)
        if said.outcome == StateCode.MODIFIED and not said.has_failed:
            disposition = Disposition.RELEASE

        def end(is_committed: bool) -> None:
            self._give(epoch, [position], disposition if is_committed else Disposition.RELEASE)
            if waiting is not None:
                self._settle_owed([waiting])

        found.at_end(end)

    def flush(self) -> None:
        """Tells the broker the outcomes of this turn."""
        if self._settles:
            settles, self._settles = self._settles, {}
            for (epoch, disposition), settled in settles.items():
                confirmation = self._give(epoch, [position for position, _ in settled], disposition)
                waiting = [owed for _, owed in settled if owed is not None]
                if waiting:
                    self._answer_when_done(confirmation, waiting, disposition)
        if self._excluded:
            excluded, self._excluded = self._excluded, {}
            for (epoch, disposition), positions in excluded.items():
                self._give(epoch, positions, disposition, self._consumer)
        if self._retired:
            retired, self._retired = self._retired, {}
            for (name, epoch), entries in retired.items():
                self._retire_batch(name, epoch, entries)

    def _retire_batch(
        self, name: bytes, epoch: Epoch, entries: Sequence[tuple[QueuePosition, _Owed | None]]
    ) -> None:
        positions = [position for position, _ in entries]
        waiting = [owed for _, owed in entries if owed is not None]
        found = self._owner.transaction(name)
        if found is None:
            self._give(epoch, positions, Disposition.RELEASE)
            self._settle_owed(waiting)
            return

        def taken(error: BaseException | None) -> None:
            if error is not None:
                # Still in this session's hands, unless they are stale: then this is refused as well, and does no harm.
                self._give(epoch, positions, Disposition.RELEASE)
            elif waiting and not self._is_over:
                state = transactional(name, StateCode.ACCEPTED)
                for owed in waiting:
                    if owed.handle is not None:
                        path.update(owed.handle, state)
                self._owner.wrote()

        place = self.source.session, self.source.batches
        found.accept(place, self.source.queue, epoch, positions, taken)
        if waiting:
            found.at_end(lambda _: self._settle_owed(waiting))

    def _answer_when_done(self, confirmation: Confirmation, waiting: list[_Owed], disposition: int) -> None:
        """The client waits for our settlement: it follows the broker's word."""

        def answer(done: Confirmation) -> None:
            if self._is_over:
                return
            is_done = not done.cancelled() and done.exception() is None
            self._settle_owed(waiting, is_accepted=is_done and disposition == Disposition.ACCEPT)

        confirmation.add_done_callback(answer)

    def _settle_or_owe(self, delivery: Handle, is_settled: bool) -> _Owed | None:
        """Settles what its client has settled; of the rest the client waits for that."""
        if is_settled:
            path.settle(delivery)
            return None
        owed = self._owed[delivery] = _Owed(delivery)
        return owed

    def _settle_owed(self, waiting: Sequence[_Owed], *, is_accepted: bool = False) -> None:
        if self._is_over:
            return
        for owed in waiting:
            handle, owed.handle = owed.handle, None
            if handle is None:
                continue
            del self._owed[handle]
            if is_accepted:
                path.accept(handle)
            else:
                path.settle(handle)
        self._owner.wrote()

    def _give(
        self, epoch: Epoch, positions: Sequence[QueuePosition], disposition: int, excluded_consumer: int = 0
    ) -> Confirmation:
        return self.source.batches.settle(
            self.source.queue, epoch, positions, disposition, None, excluded_consumer
        )
