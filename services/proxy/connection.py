"""One AMQP connection on the engine, over whatever carries its bytes, from its open to its close (AMQP 1.0, 2.4).

Law: nothing that a client sends raises out of `receive`, and nothing that it does concerns another connection. What was
received in one turn of the event loop is published and settled in one go at its end, and what there is to say is written
once. However much comes at once is taken in order, as far as one step goes; what is left goes on in later turns, and meanwhile
the client is not read. So does what its end takes, which comes behind all that it has said.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from proton import Endpoint, Event, Link

from lockstep.core.errors import LockstepError
from lockstep.transport.connection import READ_BYTES_MUCH
from services.proxy.begun_room import BegunRoom
from services.proxy.client_frames import ClientFrames
from services.proxy.core.addresses import has_control_characters
from services.proxy.core.conditions import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    INVALID_FIELD,
    RESOURCE_LIMIT,
    Condition,
    condition_of,
)
from services.proxy.delivery_states import proton_condition
from services.proxy.engine import Engine
from services.proxy.engine_words import UNREADABLE, EngineEvent, Happening
from services.proxy.input_room import InputRoom
from services.proxy.link_owner import LinkOwner
from services.proxy.links import Links
from services.proxy.opening import SOLE_CONNECTION, container_is_taken, open_connection
from services.proxy.output_room import OutputRoom
from services.proxy.reading import Reading
from services.proxy.security.identity import Identity
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits
from services.proxy.steps import Left, Work, go_on, until_over
from services.proxy.surroundings import Surroundings, Wire
from services.proxy.termini import symbols_in

TICK_SECONDS_MIN, TICK_SECONDS_MAX = 0.02, 1.0
"""Between two looks at the idle time-outs."""
_FEW = 32
"""Transfers, outcomes and flows between two places where a step may end: some hundred microseconds."""
_PIECE_BYTES = 32 * 1024
"""Of input, the same: frames of which nothing is told, as empty ones, take some milliseconds."""
_ENDS = (
    Event.CONNECTION_REMOTE_CLOSE,
    Event.SESSION_REMOTE_CLOSE,
    Event.LINK_REMOTE_CLOSE,
    Event.LINK_REMOTE_DETACH,
)
_REASON_CHARACTERS_MAX = 300
"""Of what a client says with an error, in the log."""
_BEGUN_LATE_MAX = 1_000
"""Sessions and links that a client may begin behind our close: the engine keeps them until the end, and then lets go of all of
them at once. Nobody else has as many under way."""


class AmqpConnection:
    """Lives from the AMQP header to the end of its wire; used from one event loop."""

    def __init__(self, worker: Surroundings, wire: Wire, identity: Identity, peer: str) -> None:
        self.identity = identity
        self.peer = peer
        self.container = ""
        self._worker = worker
        self._wire = wire
        self._limits: ProxyLimits = worker.settings.limits
        self._frames = ClientFrames(
            self._limits.frame_bytes_max,
            lambda: self._owner.deliveries_sent,
            lambda: self._owner.unsettled.held // MESSAGE_BYTES,
        )
        self._engine = Engine(self._limits)
        self._room = OutputRoom(wire, worker.outputs, self._limits, self._refused)
        self._reading = Reading(wire)
        self._input_room = InputRoom(self._reading, worker.input_room)
        self._begun_room = BegunRoom(worker.begun)
        self._owner = LinkOwner(self, worker, self._room, self._input_room)
        self._links = Links(self, self._owner, self._room, worker.nodes, self._limits)
        self._input: deque[bytes] = deque()
        """What came, and nobody has looked at."""
        self._work: Work | None = None
        """What is to be done of all that came, and behind it; None: nothing."""
        self._left: Left | None = None
        """What the work has left to others, if anything: it goes on behind that."""
        self._is_wire_gone = False
        self._has_failed = False
        """By a bug of ours: what came is not taken, and what is there ends."""
        self._is_flushing = False
        self._is_in_turn = False
        self._is_open = False
        self._is_closed = False
        self._is_over = False
        self._begun_before = 0
        """Sessions and links that the client had begun before our close."""
        self._timer: asyncio.TimerHandle | None = None
        self._closer: asyncio.TimerHandle | None = None
        """Ends the wire, if the client does not answer a close."""
        self._handlers: dict[object, Callable[[Event], Work | None]] = {
            Event.CONNECTION_REMOTE_OPEN: self._remote_open,
            Event.CONNECTION_REMOTE_CLOSE: self._remote_close,
            Event.SESSION_REMOTE_OPEN: self._links.session_opened,
            Event.SESSION_REMOTE_CLOSE: self._links.session_closed,
            Event.LINK_REMOTE_OPEN: self._links.link_opened,
            Event.LINK_REMOTE_DETACH: self._links.link_closed,
            Event.LINK_REMOTE_CLOSE: self._links.link_closed,
        }
        worker.traffic.logins += 1
        self._tick()

    def __repr__(self) -> str:
        return f"AmqpConnection({self.peer}, {self.container!r}, links={len(self._links)})"

    @property
    def was_opened(self) -> bool:
        """The client has sent its open."""
        return self._is_open

    @property
    def is_over(self) -> bool:
        """Its engine is gone."""
        return self._is_over

    @property
    def links(self) -> int:
        """Attached, or being attached."""
        return len(self._links)

    @property
    def transactions(self) -> int:
        """Declared and not discharged."""
        return len(self._owner.transactions)

    # --- bytes ---

    def receive(self, data: bytes) -> None:
        """Bytes of the client."""
        if not self._is_wire_gone and not self._has_too_much:
            self._input.append(data)
            self._begin(is_much=len(data) >= READ_BYTES_MUCH)

    def lose(self) -> None:
        """The wire is gone. What came on it is taken, then nothing of the connection stays."""
        if not self._is_wire_gone:
            self._is_wire_gone = True
            self._begin()

    def _begin(self, *, is_much: bool = False) -> None:
        """There is something to do; whatever is done already comes first. `is_much`: there may be as much again at once."""
        if self._work is None and not self._is_over:
            self._work = self._take_all()
            if not self._go_on():
                self._reading.pause_reading()
                self._worker.keep(asyncio.ensure_future(self._go_on_later()))
            elif is_much:
                self._reading.pause_reading()
                asyncio.get_running_loop().call_soon(self._reading.resume_reading)

    async def _go_on_later(self) -> None:
        while True:
            left, self._left = self._left, None
            await until_over(left)
            if self._go_on():
                break
        self._reading.resume_reading()

    def _go_on(self) -> bool:
        """One step; answers whether there is nothing more to do."""
        work = self._work
        assert work is not None
        self._is_in_turn = True
        try:
            is_done = go_on(work, self._leave)
            self._is_in_turn = False
            if is_done:
                self._work = None
            if not self._is_over:
                self._end_turn(is_done)
        except AssertionError:
            raise
        except Exception as error:
            self._work, self._has_failed, self._is_in_turn = None, True, False
            self._input.clear()
            self._wire.fail(error)
            return True
        return is_done

    def _leave(self, left: Left) -> None:
        self._left = left

    def _end_turn(self, is_done: bool) -> None:
        self._owner.flush_links()
        self._links.restore_windows()
        if is_done and self._engine.is_input_over:
            # Of some of what is no frame the engine says nothing, and would take nothing until its idle time-out.
            self.close(Condition(FRAMING_ERROR, "bytes that are no frames"))
        self._write()
        # The client may have opened its window.
        self._resume()

    def _take_all(self) -> Work:
        """In order: what was said, what ends by it, and the end of all. Whatever comes meanwhile is behind that."""
        if not self._input and not self._has_failed:
            yield from self._handle(self._engine.events())
        while True:
            while self._input:
                yield from self._take(self._input.popleft())
            is_last = self._is_wire_gone
            if is_last:
                if not self._has_failed:
                    yield from self._handle(self._engine.end_input())
                self._end(is_lost=not self._is_closed)
            if self._is_closed or is_last:
                yield from self._links.go_on_ending()
            if is_last:
                yield from self._release()
                return
            if not self._input and not self._is_wire_gone:
                return

    def _take(self, data: bytes) -> Work:
        if len(data) <= _PIECE_BYTES:
            yield from self._take_piece(data)
            return
        for at in range(0, len(data), _PIECE_BYTES):
            yield from self._take_piece(data[at : at + _PIECE_BYTES])
            yield None

    def _hold_begun(self, size: int) -> None:
        has_more = size > self._begun_room.held
        self._begun_room.hold(size)
        # Whoever ends something is no reason to end him, though others have begun more meanwhile.
        if has_more and self._begun_room.is_over and not self._is_closed:
            text = f"{size} bytes of sessions and links that are begun and not ended"
            self._refused("begun_bytes_max", text)
            self.close(Condition(RESOURCE_LIMIT, text))

    @property
    def _has_too_much(self) -> bool:
        """What it goes on saying behind our close is not listened to any more."""
        is_much = self._frames.begun - self._begun_before > _BEGUN_LATE_MAX or self._begun_room.is_over
        return self._is_closed and is_much

    def _take_piece(self, data: bytes) -> Work:
        engine, frames = self._engine, self._frames
        while data:
            given = frames.look(data)
            data = frames.take_rest() if frames.rest else b""
            if self._has_too_much:
                self._input.clear()
                return
            if frames.begun_bytes != self._begun_room.held:
                self._hold_begun(frames.begun_bytes)
            if frames.has_lost_handle:
                self.close(Condition(HANDLE_IN_USE, "an attach without a handle of its own"))
            for name in frames.take_acquiring():
                self._links.refuse_acquiring(name)
                yield None
            drains_nothing = False
            if frames.has_drain:
                drains_nothing = frames.take_drain()
                # What came of calls came before that flow.
                yield from self._handle(engine.events())
            yield from self._handle(engine.feed(given), drains_nothing)
            self._links.forget_acquiring()
            if data:
                yield None

    def resume_writing(self) -> None:
        """The wire has room again."""
        if self._is_over:
            return
        self._write()
        self._resume()

    def wrote(self) -> None:
        """Something is to be said: it is written when this turn of the event loop is over."""
        if not self._is_flushing and not self._is_in_turn and not self._is_over:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._is_over:
            self._write()
            # The socket may have taken it at once.
            self._resume()

    def _resume(self) -> None:
        if self._room.resume():
            self.wrote()

    def _write(self) -> None:
        for data in self._engine.output():
            self._wire.write(data)
        if self._engine.is_closed:
            self._wire.close()

    # --- time ---

    def _tick(self) -> None:
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = self._engine.tick(now, is_read=not self._reading.is_paused)
        self._begin()
        # Before the open there is none.
        delay = min(max(deadline - now, TICK_SECONDS_MIN), TICK_SECONDS_MAX) if deadline else TICK_SECONDS_MAX
        self._timer = loop.call_later(delay, self._tick)

    def give_back_late(self, now: float) -> None:
        """Once a second: messages that wait for their client for too long go back."""
        self._links.give_back_late(now)

    # --- what happens ---

    def _handle(self, happenings: Iterable[Happening], drains_nothing: bool = False) -> Work:
        """`drains_nothing`: the first flow of them wants a link drained on which its client has no credit."""
        links, few = self._links, _FEW
        for kind, link, what in happenings:
            if kind is EngineEvent.DELIVERY:
                work = links.delivered(link, what)
                if work is not None:
                    yield from work
            elif kind is EngineEvent.FLOW:
                links.flowed(link, drains_nothing=drains_nothing)
                drains_nothing = False
            else:
                happened = self._happened(what)
                if happened is not None:
                    yield from happened
                yield None
                continue
            few -= 1
            if not few:
                few = _FEW
                yield None

    def _happened(self, event: Event) -> Work | None:
        """Answers what is left to do for it before the next."""
        handler = self._handlers.get(event.type)
        if handler is None or (self._is_closed and event.type is not Event.CONNECTION_REMOTE_CLOSE):
            return None
        try:
            if event.type in _ENDS:
                self._hear_reason(event.context)
            return handler(event)
        except UNREADABLE as error:
            self.unreadable(error)
            return None

    def _hear_reason(self, ended: Any) -> None:
        """Why the client ends a link, a session or the connection."""
        reason = ended.remote_condition
        if reason is not None:
            said = f"{reason.name}: {reason.description or ''}"[:_REASON_CHARACTERS_MAX]
            self._tell("client_error", f"of={type(ended).__name__.lower()} {said}")

    def unreadable(self, error: BaseException) -> None:
        """The client has sent a field that cannot be read."""
        self._tell("unreadable", f"error={error!r}")
        self.close(Condition(DECODE_ERROR, "a field that has no value of its type"))

    def _tell(self, event: str, text: str, error: BaseException | None = None) -> None:
        """For the log: what any client can cause."""
        self._worker.refusals.seldom(event, f"peer={self.peer} {text}", error=error)

    def _refused(self, limit: str, text: str) -> None:
        self._owner.refused(limit, text)

    def end_link(self, link: Link, condition: Condition) -> None:
        """Closes a link with a reason."""
        self._links.end_link(link, condition)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something to its end, even if this connection ends before."""
        self._worker.keep(asyncio.ensure_future(self._guard(work)))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LockstepError as error:
            self._tell("work_failed", f"error={error}")
        except Exception as error:
            # Whoever waits for what it was to answer would wait for ever.
            self._tell("work_broke_off", "in doubt", error)
            self.close(Condition(CONNECTION_FORCED, "in doubt: an error of the proxy"), is_our_own=True)
            if isinstance(error, AssertionError):
                raise

    # --- the beginning ---

    def _remote_open(self, event: Event) -> None:
        if self._is_open:
            self.close(Condition(ILLEGAL_STATE, "a second open"))
            return
        self._is_open = True
        # Not before is it known how long the client waits for a word.
        asyncio.get_running_loop().call_soon(self._tick)
        connection = self._engine.connection
        self.container = connection.remote_container or ""
        if has_control_characters(self.container):
            self.close(Condition(INVALID_FIELD, "a control character in the container's id"))
            return
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
            self._release_container()

    def _open(self, *, is_refused: bool) -> None:
        connection = self._engine.connection
        open_connection(connection, self._worker.settings.advertise, is_refused=is_refused)
        if is_refused:
            text = f"container {self.container!r} is connected already"
            self.close(Condition(INVALID_FIELD, text), container_is_taken())

    # --- the end ---

    def _remote_close(self, event: Event) -> Iterator[None]:
        self._is_closed = True
        self._end(is_lost=False)
        yield from self._links.go_on_ending()
        self._engine.connection.close()

    def close(self, condition: Condition | None, info: object = None, *, is_our_own: bool = False) -> None:
        """Closes the connection, with a reason if there is one. `is_our_own`: it is no fault of the client's, so what it has did
        not fail at it, and however often it happens nothing becomes a dead letter by it."""
        if self._is_closed or self._is_over:
            return
        self._is_closed = True
        self._begun_before = self._frames.begun
        connection = self._engine.connection
        self._links.end(is_lost=True, is_our_own=is_our_own)
        asyncio.get_running_loop().call_soon(self._begin)
        if connection.state & Endpoint.LOCAL_UNINIT:
            open_connection(connection)
        if condition is not None:
            connection.condition = proton_condition(condition, info)
        connection.close()
        self.wrote()
        self._closer = asyncio.get_running_loop().call_later(self._limits.close_seconds, self._wire.close)

    def _end(self, *, is_lost: bool) -> None:
        """Nothing of it is left but what is still to be written."""
        self._links.end(is_lost=is_lost)
        self._release_container()

    def _release_container(self) -> None:
        """Another connection of the container may be let in."""
        self._worker.containers.release(self.container, self)

    def _release(self) -> Work:
        """The last: lets go of the engine."""
        self._is_over = True
        for timer in self._timer, self._closer:
            if timer is not None:
                timer.cancel()
        self._room.release()
        self._begun_room.hold(0)
        self._engine.unbind()
        yield from self._links.release()
        self._engine.release()
