"""The links of a connection, from attach to detach (AMQP 1.0, 2.6): by what handle the engine knows them, what they are here.

Law: a link that is being attached or ended is answered when its nodes are ready or gone, and not at all if the client ended it
before. What ends takes everything with it that was made for it.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from proton import Endpoint, Event, Link, Receiver, Sender, Terminus

from lockstep.core.errors import LockstepError
from services.proxy.amqp_sessions import AmqpSessions
from services.proxy.attaching import Attaching, asks_for_subscription
from services.proxy.coordinator_link import CoordinatorLink
from services.proxy.core.addresses import has_control_characters
from services.proxy.core.conditions import (
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    Condition,
    condition_of,
    ends_connection,
)
from services.proxy.delivery_states import end_link
from services.proxy.engine_path import path
from services.proxy.engine_words import UNREADABLE, Handle
from services.proxy.incoming_link import IncomingLink
from services.proxy.link_owner import LinkOwner
from services.proxy.nodes import Nodes
from services.proxy.outgoing_link import OutgoingLink
from services.proxy.output_room import OutputRoom
from services.proxy.settings import ProxyLimits
from services.proxy.steps import Work
from services.proxy.termini import answer_coordinator

ProxyLink = IncomingLink | OutgoingLink | CoordinatorLink
_Found = TypeVar("_Found")
_CANNOT_ACQUIRE = Condition(
    NOT_IMPLEMENTED, "acquiring in a transaction what is settled when it is sent: a rollback would lose it"
)


class Connection(Protocol):
    """What links need of their connection to begin and end."""

    @property
    def was_opened(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    def wrote(self) -> None: ...
    def close(self, condition: Condition | None, *, is_our_own: bool = False) -> None: ...
    def unreadable(self, error: BaseException) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...


class Links:
    """Lives as long as its connection, which drives it."""

    def __init__(
        self, connection: Connection, owner: LinkOwner, room: OutputRoom, nodes: Nodes, limits: ProxyLimits
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._room = room
        self._nodes = nodes
        self._limits = limits
        self._attaching = Attaching(owner, nodes, limits)
        self._sessions = AmqpSessions(limits)
        self._attached: dict[Handle, tuple[ProxyLink | None, Link]] = {}
        """Every link that is attached, or being attached (None)."""
        self._receivers = 0
        """Those of them on which the client receives."""
        self._ending: deque[tuple[ProxyLink, bool, asyncio.Future[None] | None]] = deque()
        """What was attached when the connection ended, each with whether its client failed, or was lost; and who waits for what
        goes back then."""
        self._attaches = asyncio.Semaphore(limits.attaching_max)
        """Of those that are being attached: who may look for its node now."""
        self._closing: dict[Link, bool] = {}
        """Links that the client has ended, and whose end is answered when their nodes are gone: whether it has closed them."""
        self._acquiring: set[str] = set()
        """Names of links that are not attached yet, and that are to be refused for what they ask for."""
        self._closed_early: set[Link] = set()
        """Links that the client has closed for good while they were being attached."""

    def __len__(self) -> int:
        return len(self._attached)

    # --- what comes on them ---

    def delivered(self, handle: Handle, delivery: Handle) -> Work | None:
        """Transfers came in on a link, or the client said something of a delivery. Answers what is left to do for it, before the
        client is heard again.
        """
        known = self._attached.get(handle)
        made = known[0] if known is not None else None
        if made is None:
            self._stray(handle, known)
        elif isinstance(made, OutgoingLink):
            if not made.disposition(delivery):
                self._stray(handle, known)
        else:
            self._owner.touched(made)
            if isinstance(made, IncomingLink):
                return made.receive()
            made.receive()
        return None

    def _stray(self, handle: Handle, known: tuple[ProxyLink | None, Link] | None) -> None:
        """A delivery on a link that takes none: not yet, not any more, or never."""
        if path.has_unsent(handle):
            # The engine takes it for one of ours. It must not live on: settled, it would be freed and still be known by its id.
            text = "a transfer on a link on which the client receives"
            self._connection.close(Condition(NOT_ALLOWED, text))
        elif known is None:
            # Of a link that was refused: it is in the sessions' account already.
            path.drop_received(handle)
        elif isinstance(known[1], Receiver):
            self._detach(handle)
            self._refuse(known[1], Condition(TRANSFER_LIMIT, "a transfer without credit"))

    def flowed(self, handle: Handle, *, drains_nothing: bool) -> None:
        """The client changed the credit of a link, or wants it drained, or messages have left on it."""
        known = self._attached.get(handle)
        if known is not None and isinstance(known[0], OutgoingLink):
            known[0].flow(drains_nothing=drains_nothing)

    def give_back_late(self, now: float) -> None:
        """Messages that wait for their client for too long go back. `now`: seconds of the event loop."""
        for link, _ in list(self._attached.values()):
            if isinstance(link, OutgoingLink):
                link.give_back_late(now)
        # Other connections may have left room to those that wait for it.
        self._room.resume()
        if left := self._room.left_behind(self._sessions.sending):
            text = f"{left} bytes of messages were sent on links that were detached before a window let them through"
            self._owner.refused("connection_output_bytes_max", text)
            self._connection.close(Condition(RESOURCE_LIMIT, text), is_our_own=True)

    # --- sessions ---

    def restore_windows(self) -> None:
        """At the end of a turn: windows get back what came on links that are refused."""
        self._sessions.restore_windows()

    def session_opened(self, event: Event) -> None:
        """The client begins one."""
        if not self._connection.was_opened or not self._sessions.begin(_known(event.session)):
            self._connection.close(Condition(ILLEGAL_STATE, "a begin that begins no session"))

    def session_closed(self, event: Event) -> Work:
        """The client ends one. `ClientFrames` has had the engine hear before that its links are detached: what slips through
        there does not outlive its session."""
        session = _known(event.session)
        for handle, (_, link) in list(self._attached.items()):
            if link.session == session:
                self._drop(handle, is_lost=False)
                self._abandon(link)
            yield None
        for link, is_close in list(self._closing.items()):
            if link in self._closing and link.session == session:
                del self._closing[link]
                self._answer_close(link, is_close, None)
            yield None
        self._room.forget_session(path.handle_of(session))
        yield from self._sessions.end(session)

    # --- they begin ---

    def link_opened(self, event: Event) -> None:
        """The client attaches one."""
        link = _known(event.link)
        handle = path.handle_of(link)
        name = link.name
        if name is None:
            raise ValueError("a link without a name")
        if has_control_characters(name):
            # What could be said of such a link is not heard by whoever looks for it by its name.
            text = "a control character in the name of a link"
            self._connection.close(Condition(INVALID_FIELD, text))
            return
        if not self._sessions.attach(link):
            text = "too many links, most of them refused or never detached"
            self._owner.refused("session_links_max", text)
            self._connection.close(Condition(RESOURCE_LIMIT, text))
            return
        if len(self._attached) >= self._limits.links_max:
            self._refuse_by("links_max", link, f"{len(self._attached)} links are attached")
            return
        if isinstance(link, Sender) and self._receivers >= self._limits.receivers_max:
            self._refuse_by("receivers_max", link, f"{self._receivers} receivers are attached")
            return
        if has_control_characters(link.remote_source.address) or has_control_characters(
            link.remote_target.address
        ):
            self._refuse(link, Condition(INVALID_FIELD, "a control character in an address"))
            return
        self._attached[handle] = None, link
        self._receivers += isinstance(link, Sender)
        if isinstance(link, Receiver) and link.remote_target.type == Terminus.COORDINATOR:
            self._coordinate(handle, link)
            return
        self._connection.run(self._attach(handle, link))

    def _detach(self, handle: Handle) -> ProxyLink | None:
        """It is not attached any more; answers what it was here, None also for one that was being attached, or is not known."""
        made, link = self._attached.pop(handle, (None, None))
        self._receivers -= isinstance(link, Sender)
        return made

    async def _attach(self, handle: Handle, link: Link) -> None:
        try:
            async with self._attaches:
                ends = link in self._closed_early and asks_for_subscription(link)
                if handle not in self._attached and not ends:
                    # Detached, or the connection ended, while it waited: nothing was made for it.
                    self._abandon(link)
                    return
                made = await self._attaching.attach(link)
        except LockstepError as error:
            if handle in self._attached:
                self._detach(handle)
                self._refuse_or_give_up(link, error)
                self._connection.wrote()
            self._abandon(link)
            return
        except UNREADABLE as error:
            self._connection.unreadable(error)
            self._abandon(link)
            return
        if handle not in self._attached:
            # Detached, or the connection ended, meanwhile.
            self._abandon(link)
            return
        self._attached[handle] = made, link
        link.open()
        made.open()
        self._connection.wrote()
        if self._acquiring and link.name in self._acquiring and isinstance(made, OutgoingLink):
            self.end_link(link, _CANNOT_ACQUIRE)
        elif isinstance(made, OutgoingLink):
            # Of what it said while nobody heard it: nothing has used up a credit.
            made.flow(drains_nothing=True)

    def _coordinate(self, handle: Handle, link: Receiver) -> None:
        made = CoordinatorLink(self._owner, link)
        self._attached[handle] = made, link
        answer_coordinator(link)
        link.open()
        made.open()

    def _refuse_or_give_up(self, link: Link, error: LockstepError) -> None:
        if ends_connection(error):
            self._owner.give_up(error)
        else:
            self._refuse(link, condition_of(error))

    def _refuse_by(self, limit: str, link: Link, text: str) -> None:
        self._owner.refused(limit, text)
        self._refuse(link, Condition(RESOURCE_LIMIT, text))

    def _refuse(self, link: Link, condition: Condition) -> None:
        """Attach without the terminus that was asked for, then detach (2.6.3); without both, because some clients look at one."""
        if self._acquiring:
            self._acquiring.discard(link.name)
        self._sessions.refused(link.session)
        link.source.type = link.target.type = Terminus.UNSPECIFIED
        link.open()
        end_link(link, condition)

    # --- they end ---

    def link_closed(self, event: Event) -> Work:
        """The client detaches one, or closes it."""
        link = _known(event.link)
        self._sessions.detach(link)
        is_close = event.type is Event.LINK_REMOTE_CLOSE
        handle = path.handle_of(link)
        if is_close and handle in self._attached and self._attached[handle][0] is None:
            self._closed_early.add(link)
        self._drop(handle, is_lost=False)
        yield from self._sessions.settle(handle)
        work = self._attaching.detached(link, is_closed=is_close)
        if work is None:
            self._answer_close(link, is_close, None)
        else:
            # Whoever hears that it ended may count on that.
            self._closing[link] = is_close
            self._connection.run(self._close_behind(work, link, is_close))

    async def _close_behind(self, work: Coroutine[Any, Any, None], link: Link, is_close: bool) -> None:
        condition = None
        try:
            await work
        except LockstepError as error:
            if ends_connection(error):
                self._owner.give_up(error)
            condition = condition_of(error)
        if link in self._closing and not self._connection.is_over:
            del self._closing[link]
            self._answer_close(link, is_close, condition)
            self._connection.wrote()

    def _answer_close(self, link: Link, is_close: bool, condition: Condition | None) -> None:
        if link.state & Endpoint.LOCAL_UNINIT:
            link.open()
        if link.state & Endpoint.LOCAL_ACTIVE:
            if is_close:
                end_link(link, condition)
            else:
                link.detach()
        link.free()

    def end_link(self, link: Link, condition: Condition) -> None:
        """Closes a link with a reason."""
        self._drop(path.handle_of(link), is_lost=False)
        self._abandon(link)
        if link.state & Endpoint.LOCAL_ACTIVE:
            self._sessions.refused(link.session)
            end_link(link, condition)
        self._connection.wrote()

    def end(self, *, is_lost: bool, is_our_own: bool = False) -> None:
        """The connection ends: what still comes on its links is nobody's, and `go_on_ending` ends them. `is_lost`: the client has
        not said so; `is_our_own`: nor could it help that, so what it has did not fail at it."""
        self._owner.flush_links()
        self._closing.clear()
        self._room.close()
        attached, self._attached, self._receivers = self._attached, {}, 0
        for made, _ in attached.values():
            if made is not None:
                ended: asyncio.Future[None] | None = None
                if isinstance(made, OutgoingLink):
                    ended = asyncio.get_running_loop().create_future()
                    self._owner.returning.note(made.source.queue, ended)
                elif isinstance(made, IncomingLink):
                    made.expect_end()
                has_failed = is_lost and not (is_our_own and isinstance(made, OutgoingLink))
                self._ending.append((made, has_failed, ended))

    def go_on_ending(self) -> Iterator[None]:
        """So do all of its links and dynamic nodes."""
        while self._ending:
            made, is_lost, ended = self._ending.popleft()
            try:
                self._end_one(made, is_lost)
            finally:
                if ended is not None:
                    ended.set_result(None)
            yield
        temporary = self._owner.temporary
        for address in list(temporary):
            del temporary[address]
            self._connection.run(self._nodes.delete_temporary(address))
            yield

    def release(self) -> Work:
        """The last call, when the engine has no transport any more: frees them."""
        yield from self._sessions.release()

    def refuse_acquiring(self, name: str) -> None:
        """The client wants to acquire in a transaction (4.4.3) on its link of that name, where all is settled when it is sent."""
        for made, link in self._attached.values():
            if isinstance(made, OutgoingLink) and link.name == name:
                self.end_link(link, _CANNOT_ACQUIRE)
                return
        self._acquiring.add(name)

    def forget_acquiring(self) -> None:
        """The engine has heard of all links that the client has attached: what is of none that is being attached is of none."""
        if self._acquiring:
            self._acquiring &= {link.name for made, link in self._attached.values() if made is None}

    def _abandon(self, link: Link) -> None:
        """It is gone without an answer; what ends with it ends."""
        if self._acquiring:
            self._acquiring.discard(link.name)
        is_closed = link in self._closed_early
        self._closed_early.discard(link)
        work = self._attaching.detached(link, is_closed=is_closed)
        if work is not None:
            self._connection.run(work)

    def _drop(self, handle: Handle, *, is_lost: bool) -> None:
        """The link and all handles of its deliveries are no more."""
        made = self._detach(handle)
        if made is not None:
            self._end_one(made, is_lost)

    def _end_one(self, made: ProxyLink, is_lost: bool) -> None:
        # What its client said before on any link comes before that: a link that ends has what gathers be written, and an accept
        # in it would overtake a transfer of what was made of it; a coordinator's rolls back what belongs to its transactions.
        self._owner.flush_links()
        made.flush()
        if isinstance(made, OutgoingLink):
            self._room.forget(made)
            made.end(is_lost=is_lost)
            self._sessions.ended(*made.settle_left())
        elif isinstance(made, IncomingLink):
            made.end(is_lost=is_lost)
        else:
            made.end()


def _known(found: _Found | None) -> _Found:
    """Of an event that is about it."""
    assert found is not None
    return found
