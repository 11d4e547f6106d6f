"""One AMQP connection: its sessions and links on the engine, over whatever carries its bytes (AMQP 1.0, 2.4 to 2.7).

Law: nothing that a client sends raises out of `receive`, and nothing that it does concerns another connection. What was
received in one turn of the event loop is published and settled in one go at its end, and what there is to say is written
once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from proton import Endpoint, Event, Link, Receiver, Session, Terminus

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.amqp_transactions import AmqpTransactions
from services.proxy.attaching import Attaching
from services.proxy.containers import Containers
from services.proxy.coordinator_link import CoordinatorLink, Declare
from services.proxy.core.conditions import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    Condition,
    condition_of,
)
from services.proxy.delivery_states import end_link, proton_condition
from services.proxy.engine import Engine
from services.proxy.engine_path import path
from services.proxy.engine_words import UNREADABLE, EngineEvent, Handle
from services.proxy.incoming_link import IncomingLink
from services.proxy.nodes import Nodes, Target
from services.proxy.opening import SOLE_CONNECTION, container_is_taken, open_connection
from services.proxy.outgoing_link import OutgoingLink
from services.proxy.reclaiming import Reclaims
from services.proxy.relay_targets import RelayTargets
from services.proxy.returning import Returning
from services.proxy.security.identity import Identity
from services.proxy.security.users import Action, Permissions
from services.proxy.settings import ProxyLimits, ProxySettings
from services.proxy.termini import answer_coordinator, symbols_in

_log = logging.getLogger("lockstep.proxy")

ProxyLink = IncomingLink | OutgoingLink | CoordinatorLink
_Found = TypeVar("_Found")
TICK_SECONDS_MIN, TICK_SECONDS_MAX = 0.02, 1.0
"""Between two looks at the idle time-outs."""


class Wire(Protocol):
    """What carries the connection's bytes."""

    def write(self, data: bytes | bytearray) -> None: ...
    def waiting_bytes(self) -> int: ...
    def close(self) -> None: ...


class Surroundings(Protocol):
    """What a connection needs of its worker."""

    settings: ProxySettings
    nodes: Nodes
    permissions: Permissions
    reclaims: Reclaims
    returning: Returning
    containers: Containers

    def forget_connection(self, connection: "AmqpConnection") -> None: ...
    def keep(self, task: "asyncio.Task[None]") -> None: ...


class AmqpConnection:
    """Lives from the AMQP header to the end of its wire; used from one event loop."""

    def __init__(self, worker: Surroundings, wire: Wire, identity: Identity, peer: str) -> None:
        self.identity = identity
        self.peer = peer
        self.container = ""
        self.temporary: dict[str, None] = {}
        """Addresses of its dynamic nodes."""
        self._worker = worker
        self._wire = wire
        self._limits: ProxyLimits = worker.settings.limits
        self._engine = Engine(self._limits)
        self._links: dict[Handle, tuple[ProxyLink | None, Link]] = {}
        """Every link that is attached, or being attached (None)."""
        self._closing: dict[Link, None] = {}
        """Links that the client has ended, and whose end is answered when their nodes are gone."""
        self._sessions: dict[Session, int] = {}
        """Those that the client has begun, each with the links that it has attached and not detached."""
        self._touched: dict[ProxyLink, None] = {}
        """Links with something to publish or settle at the end of this turn."""
        self._transactions = AmqpTransactions(worker.nodes.session, self._limits)
        self._relay = RelayTargets(worker.nodes, lambda text: self.check(Action.PUBLISH, text))
        self._partial_bytes = 0
        self._held_up: dict[OutgoingLink, None] = {}
        """Links with messages that there is no room for."""
        self._is_flushing = False
        self._is_in_turn = False
        self._is_open = False
        self._is_closed = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._closer: asyncio.TimerHandle | None = None
        """Ends the wire, if the client does not answer a close."""
        self._attaching = Attaching(self, worker.nodes, self._limits)
        self._handlers: dict[object, Callable[[Event], None]] = {
            Event.CONNECTION_REMOTE_OPEN: self._remote_open,
            Event.CONNECTION_REMOTE_CLOSE: self._remote_close,
            Event.SESSION_REMOTE_OPEN: self._session_open,
            Event.SESSION_REMOTE_CLOSE: self._session_close,
            Event.LINK_REMOTE_OPEN: self._link_open,
            Event.LINK_REMOTE_DETACH: self._link_close,
            Event.LINK_REMOTE_CLOSE: self._link_close,
        }
        self._tick()

    def __repr__(self) -> str:
        return f"AmqpConnection({self.peer}, {self.container!r}, links={len(self._links)})"

    @property
    def was_opened(self) -> bool:
        """The client has sent its open."""
        return self._is_open

    @property
    def links(self) -> int:
        """Attached, or being attached."""
        return len(self._links)

    @property
    def transactions(self) -> int:
        """Declared and not discharged."""
        return len(self._transactions)

    # --- bytes ---

    def receive(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._is_over:
            return
        self._is_in_turn = True
        try:
            for kind, link, what in self._engine.feed(data):
                self._handle(kind, link, what)
        finally:
            self._is_in_turn = False
        self.flush_links()
        if self._engine.is_input_over:
            # Of some of what is no frame the engine says nothing, and would take nothing until its idle time-out.
            self.close(Condition(FRAMING_ERROR, "bytes that are no frames"))
        self._write()
        if self._held_up:
            # The client may have opened its window.
            self._resume_links()

    def lose(self) -> None:
        """The wire is gone."""
        if self._is_over:
            return
        for kind, link, what in self._engine.end_input():
            self._handle(kind, link, what)
        self._end(is_lost=not self._is_closed)

    def resume_writing(self) -> None:
        """The wire has room again."""
        if self._is_over:
            return
        self._write()
        self._resume_links()

    def wrote(self) -> None:
        """Something is to be said: it is written when this turn of the event loop is over."""
        if not self._is_flushing and not self._is_in_turn and not self._is_over:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._is_over:
            self._write()
            if self._held_up:
                # The socket may have taken it at once.
                self._resume_links()

    def _write(self) -> None:
        for data in self._engine.output():
            self._wire.write(data)
        if self._engine.is_closed:
            self._wire.close()

    @property
    def reclaims(self) -> Reclaims:
        """What clients of this worker have of epochs that are over."""
        return self._worker.reclaims

    @property
    def returning(self) -> Returning:
        """What goes back to its queues from this worker."""
        return self._worker.returning

    def room(self, link: Handle) -> int:
        """Bytes of messages that may wait to be written to the client, beside those of the link's session that do."""
        return self._limits.output_bytes_max - self._wire.waiting_bytes() - path.unsent_bytes(link)

    def held_up(self, link: OutgoingLink) -> None:
        """There is no room for what it has to send: it is told when there may be."""
        self._held_up[link] = None

    def _resume_links(self) -> None:
        held_up, self._held_up = self._held_up, {}
        for link in held_up:
            link.resume()

    # --- time ---

    def _tick(self) -> None:
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = self._engine.tick(now)
        for kind, link, what in self._engine.events():
            self._handle(kind, link, what)
        self._write()
        # Before the open there is none.
        delay = min(max(deadline - now, TICK_SECONDS_MIN), TICK_SECONDS_MAX) if deadline else TICK_SECONDS_MAX
        self._timer = loop.call_later(delay, self._tick)

    def give_back_late(self, now: float) -> None:
        """Once a second: messages that wait for their client for too long go back."""
        for link, _ in list(self._links.values()):
            if isinstance(link, OutgoingLink):
                link.give_back_late(now)

    # --- what happens ---

    def _handle(self, kind: EngineEvent, link: Handle, what: Any) -> None:
        if kind is EngineEvent.DELIVERY:
            known = self._links.get(link)
            if known is None or known[0] is None:
                self._stray(link, known)
            elif isinstance(known[0], OutgoingLink):
                if not known[0].disposition(what):
                    self._stray(link, known)
            else:
                self._touched[known[0]] = None
                known[0].receive()
        elif kind is EngineEvent.FLOW:
            known = self._links.get(link)
            if known is not None and isinstance(known[0], OutgoingLink):
                known[0].flow()
        else:
            self._happened(what)

    def _stray(self, handle: Handle, known: tuple[ProxyLink | None, Link] | None) -> None:
        """A delivery on a link that takes none: not yet, not any more, or never."""
        if path.has_unsent(handle):
            # The engine takes it for one of ours. It must not live on: settled, it would be freed and still be known by its id.
            self.close(Condition(NOT_ALLOWED, "a transfer on a link on which the client receives"))
        elif known is None:
            path.drop_received(handle)
        elif isinstance(known[1], Receiver):
            del self._links[handle]
            self._refuse(known[1], Condition(TRANSFER_LIMIT, "a transfer without credit"))

    def _happened(self, event: Event) -> None:
        handler = self._handlers.get(event.type)
        if handler is None or (self._is_closed and event.type is not Event.CONNECTION_REMOTE_CLOSE):
            return
        try:
            handler(event)
        except UNREADABLE as error:
            self._unreadable(error)

    def _unreadable(self, error: BaseException) -> None:
        _log.warning("peer=%s event=unreadable error=%r", self.peer, error)
        self.close(Condition(DECODE_ERROR, "a field that has no value of its type"))

    def _remote_open(self, event: Event) -> None:
        if self._is_open:
            self.close(Condition(ILLEGAL_STATE, "a second open"))
            return
        self._is_open = True
        # Not before is it known how long the client waits for a word.
        asyncio.get_running_loop().call_soon(self._tick)
        connection = self._engine.connection
        self.container = connection.remote_container or ""
        if SOLE_CONNECTION in symbols_in(connection.remote_desired_capabilities):
            self.run(self._claim_and_open())
        else:
            self._open(is_refused=False)

    async def _claim_and_open(self) -> None:
        try:
            is_claimed = await self._worker.containers.claim(self.container, self)
        except LockstepError as error:
            self.close(condition_of(error))
            return
        if not self._is_over and not self._is_closed:
            self._open(is_refused=not is_claimed)
            self.wrote()
        elif is_claimed:
            self._worker.forget_connection(self)

    def _open(self, *, is_refused: bool) -> None:
        connection = self._engine.connection
        open_connection(connection, self._worker.settings.advertise, is_refused=is_refused)
        if is_refused:
            text = f"container {self.container!r} is connected already"
            self.close(Condition(INVALID_FIELD, text), container_is_taken())

    def _remote_close(self, event: Event) -> None:
        self._is_closed = True
        self._end(is_lost=False)
        self._engine.connection.close()
        self._write()

    def _session_open(self, event: Event) -> None:
        session = _known(event.session)
        if not self._is_open or session in self._sessions or len(self._sessions) > self._limits.channels_max:
            # The engine lets a client begin a session on two channels, as if it answered one of ours: freed with one of them,
            # it would still be known by the other. And two sessions on one channel, of which one stays for ever.
            self.close(Condition(ILLEGAL_STATE, "a begin that begins no session"))
            return
        self._sessions[session] = 0
        session.incoming_capacity = self._limits.session_window_bytes
        session.open()

    def _session_close(self, event: Event) -> None:
        session = _known(event.session)
        for handle, (_, link) in list(self._links.items()):
            if link.session == session:
                self._drop_link(handle, is_lost=False)
                self._abandon(link)
        for link in list(self._closing):
            if link.session == session:
                del self._closing[link]
        del self._sessions[session]
        session.close()
        session.free()

    def _link_open(self, event: Event) -> None:
        link = _known(event.link)
        handle = path.handle_of(link)
        if link.name is None:
            raise ValueError("a link without a name")
        self._sessions[_keep_session(link)] += 1
        if sum(self._sessions.values()) > 2 * self._limits.links_max:
            self.close(Condition(RESOURCE_LIMIT, "too many links, most of them refused or never detached"))
            return
        if len(self._links) >= self._limits.links_max:
            self._refuse(link, Condition(RESOURCE_LIMIT, f"{len(self._links)} links are attached"))
            return
        self._links[handle] = None, link
        if isinstance(link, Receiver) and link.remote_target.type == Terminus.COORDINATOR:
            self._coordinate(handle, link)
            return
        self.run(self._attach(handle, link))

    async def _attach(self, handle: Handle, link: Link) -> None:
        try:
            made = await self._attaching.attach(link)
        except LockstepError as error:
            if self._links.pop(handle, None) is not None:
                self._refuse(link, condition_of(error))
                self.wrote()
            self._abandon(link)
            return
        except UNREADABLE as error:
            self._unreadable(error)
            self._abandon(link)
            return
        if handle not in self._links:
            # Detached, or the connection ended, meanwhile.
            self._abandon(link)
            return
        self._links[handle] = made, link
        link.open()
        made.open()
        self.wrote()
        if isinstance(made, OutgoingLink):
            made.flow()

    def _coordinate(self, handle: Handle, link: Receiver) -> None:
        made = CoordinatorLink(self, link)
        self._links[handle] = made, link
        answer_coordinator(link)
        link.open()
        made.open()

    def _refuse(self, link: Link, condition: Condition) -> None:
        """Attach without the terminus that was asked for, then detach (2.6.3); without both, because some clients look at one."""
        link.source.type = link.target.type = Terminus.UNSPECIFIED
        link.open()
        end_link(link, condition)

    def _link_close(self, event: Event) -> None:
        link = _known(event.link)
        self._sessions[_keep_session(link)] -= 1
        is_close = event.type is Event.LINK_REMOTE_CLOSE
        self._drop_link(path.handle_of(link), is_lost=False)
        work = self._attaching.detached(link, is_closed=is_close)
        if work is None:
            self._answer_close(link, is_close, None)
        else:
            # Whoever hears that it ended may count on that.
            self._closing[link] = None
            self.run(self._close_behind(work, link, is_close))

    async def _close_behind(self, work: Coroutine[Any, Any, None], link: Link, is_close: bool) -> None:
        condition = None
        try:
            await work
        except LockstepError as error:
            condition = condition_of(error)
        if link in self._closing and not self._is_over:
            del self._closing[link]
            self._answer_close(link, is_close, condition)
            self.wrote()

    def _answer_close(self, link: Link, is_close: bool, condition: Condition | None) -> None:
        if link.state & Endpoint.LOCAL_UNINIT:
            link.open()
        if link.state & Endpoint.LOCAL_ACTIVE:
            if is_close:
                end_link(link, condition)
            else:
                link.detach()
        link.free()

    def _abandon(self, link: Link) -> None:
        """It is gone without an answer; what ends with it ends."""
        work = self._attaching.detached(link, is_closed=False)
        if work is not None:
            self.run(work)

    def _drop_link(self, handle: Handle, *, is_lost: bool) -> None:
        """The link and all handles of its deliveries are no more."""
        made, _ = self._links.pop(handle, (None, None))
        if made is None:
            return
        if isinstance(made, CoordinatorLink):
            # What came before belongs to its transactions, and is rolled back with them.
            self.flush_links()
        self._touched.pop(made, None)
        made.flush()
        if isinstance(made, OutgoingLink):
            self._held_up.pop(made, None)
            made.end(is_lost=is_lost)
        else:
            made.end()

    # --- what links ask of it ---

    def touched(self, link: OutgoingLink) -> None:
        """It has outcomes to tell at the end of the turn."""
        self._touched[link] = None

    def flush_links(self) -> None:
        """Publishes and settles what came in this turn."""
        touched, self._touched = self._touched, {}
        for link in touched:
            link.flush()

    def known_target(self, text: str) -> Target | None:
        """Of an address that a message on the anonymous relay has named before."""
        return self._relay.known(text)

    def find_target(self, text: str, found: Callable[[Target | Rejected], None]) -> None:
        """Tells `found` the target of an address, or why there is none."""

        async def find() -> None:
            found(await self._relay.find(text))

        self.run(find())

    def check(self, action: Action, resource: str) -> None:
        """Raises `Rejected` (UNAUTHORIZED) unless whom it speaks for may do that."""
        if not self._worker.permissions.may(self.identity, action, resource):
            text = f"{self.identity.user!r} may not {action} {resource!r}"
            raise Rejected(ErrorCode.UNAUTHORIZED, text)

    def forget_target(self, target: Target) -> None:
        self._worker.nodes.forget_target(target)

    def take_partial(self, size: int) -> bool:
        """Counts bytes of unfinished messages; False: too many."""
        self._partial_bytes += size
        return self._partial_bytes <= self._limits.partial_bytes_max

    def end_link(self, link: Link, condition: Condition) -> None:
        """Closes a link with a reason."""
        self._drop_link(path.handle_of(link), is_lost=False)
        self._abandon(link)
        if link.state & Endpoint.LOCAL_ACTIVE:
            end_link(link, condition)
        self.wrote()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something to its end, even if this connection ends before."""
        self._worker.keep(asyncio.ensure_future(self._guard(work)))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LockstepError as error:
            _log.warning("peer=%s event=work_failed error=%s", self.peer, error)

    # --- transactions ---

    def declare(self, declare: Declare) -> AmqpTransaction:
        """Begins a transaction, or a branch. Raises `Rejected`."""
        return self._transactions.declare(declare.global_id)

    def transaction(self, name: bytes) -> AmqpTransaction | None:
        return self._transactions.get(name)

    def forget(self, transaction: AmqpTransaction) -> None:
        self._transactions.forget(transaction)

    # --- the end ---

    def give_up(self, error: LockstepError) -> None:
        """Nobody can tell the outcome of something that the client waits for: without an answer it knows that."""
        self.close(Condition(CONNECTION_FORCED, f"in doubt: {error.message}"))

    def close(self, condition: Condition | None, info: object = None) -> None:
        """Closes the connection, with a reason if there is one."""
        if self._is_closed or self._is_over:
            return
        self._is_closed = True
        connection = self._engine.connection
        self._end_links(is_lost=True)
        if connection.state & Endpoint.LOCAL_UNINIT:
            open_connection(connection)
        if condition is not None:
            connection.condition = proton_condition(condition, info)
        connection.close()
        self.wrote()
        self._closer = asyncio.get_running_loop().call_later(self._limits.close_seconds, self._wire.close)

    def _end_links(self, *, is_lost: bool) -> None:
        self.flush_links()
        self._closing.clear()
        for handle in list(self._links):
            self._drop_link(handle, is_lost=is_lost)
        for address in list(self.temporary):
            del self.temporary[address]
            self.run(self._worker.nodes.delete_temporary(address))

    def _end(self, *, is_lost: bool) -> None:
        """Nothing of it is left but what is still to be written."""
        self._end_links(is_lost=is_lost)
        self._worker.forget_connection(self)

    def release(self) -> None:
        """The last call: lets go of the engine."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._closer is not None:
            self._closer.cancel()
        self._engine.release()


def _keep_session(link: Link) -> Session:
    """Has whoever keeps this object of a link keep the link's session, too, and let go of it after the link; returns it.

    An object that is the last to hold an ended session lets go of the link, then of the session, which frees the link while it
    is being freed. (The dictionary is the object's own: its attributes are kept by the engine's link.)
    """
    session = link.session
    link.__dict__["kept_session"] = session
    return session


def _known(found: _Found | None) -> _Found:
    """Of an event that is about it."""
    assert found is not None
    return found
