"""One session in one resource set on the event loop: performs what its session core asks for.

Law: it decides nothing. Every command handed in gets a future, and the core's answer settles it.
"""

import asyncio
import logging
import random
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, assert_never

from lockstep.client import session_events as e
from lockstep.client.room_line import RoomLine
from lockstep.client.session_core import SessionCore
from lockstep.client.session_line import State
from lockstep.client.session_settings import SessionSettings
from lockstep.client.session_stream import SessionStream, UnsayableError, check_sayable
from lockstep.client.transaction_reserve import TransactionReserve
from lockstep.client.unheard import unheard
from lockstep.client.unsayable import refuse
from lockstep.client.void_deliveries import told_apart
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import (
    Epoch,
    LogIndex,
    QueuePosition,
    SessionId,
    SetName,
    TransactionKey,
    transaction_id,
)
from lockstep.core.pieces import PIECE_COST, do_piece
from lockstep.core.wire_numbers import known
from lockstep.core.xa import BranchState
from lockstep.runtime.channels import Channels

_log = logging.getLogger("lockstep.client")

EFFECTS_AT_ONCE = 200
"""That are performed before others have their turn: some milliseconds."""
POSITIONS_PER_EFFECT = 10
"""To tell that so many deliveries are void costs as much as another effect."""
POSITIONS_AT_ONCE = EFFECTS_AT_ONCE * POSITIONS_PER_EFFECT
"""Of void deliveries, of which is told before others have their turn."""


class ConsumerPort(Protocol):
    """What a consumer is told. It may ask the session for something before it returns, and is told nothing else meanwhile."""

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[sm.DeliveredMessage, ...]) -> None: ...
    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int] | None:
        """`positions`: in ascending order. May answer what is to be done for that, as `Voided` does."""

    def drained(self) -> None: ...
    def stop(self, code: ErrorCode, message: str) -> None: ...


_FOR_CONSUMERS = (
    e.Delivered,
    e.AllVoided,
    e.DeliveriesVoided,
    e.ConsumerDrained,
    e.ConsumerStopped,
    e.SessionLost,
)
"""Told in their order; behind the loss of a session comes what the next one delivers."""
Voided = Callable[[str, Epoch, tuple[QueuePosition, ...]], Iterator[int] | None]
"""Hears that deliveries of a queue, from an epoch, are void. May answer what is to be done for that, in steps that say what they
cost (`lockstep/core/pieces.py`): it begins at once, and nobody is told anything else before its end."""


def now_ms() -> int:
    """A clock that does not go back, in milliseconds."""
    return int(time.monotonic() * 1000)


def new_session_id() -> SessionId:
    return SessionId(str(uuid.uuid4()))


class SetSession:
    """Lives from its first use in a session until `close`; used from one event loop. The first of `candidates` is tried first."""

    BACKLOG_BYTES_MAX = 64 << 20
    """Publishers wait while so much is not yet answered: memory of this process, and a second or so of a fast primary."""

    def __init__(
        self,
        channels: Channels,
        set_name: SetName,
        candidates: Sequence[str],
        settings: SessionSettings | None = None,
        on_attached: Callable[["SetSession", e.Attached], None] = lambda _session, _attached: None,
        voided: Voided | None = None,
    ) -> None:
        """`voided` hears of what is void and came to a consumer that has stopped since, and left it in the session's hands."""
        self.set_name = set_name
        self.loop = asyncio.get_running_loop()
        self.core = SessionCore(set_name, candidates, new_session_id, random.randrange, settings)
        self.before_write: Callable[[], None] = lambda: None
        """Called when a write may follow, or something else is said: whoever gathers commands submits them now."""
        self.rejects_over: Callable[[str | None], asyncio.Future[None] | None] = lambda _queue: None
        """Of whoever has rejects wait: answers what is done when all is over that was rejected until now, of a queue or of any
        (None). None: nothing of it is left."""
        self.gathered_bytes = 0
        """Of commands that gather, and are not submitted yet; kept by whoever gathers them."""
        self.has_complete = False
        """Of these commands one takes no more, and whoever asked for room since has let nobody else run."""
        self.lost_sessions = 0
        """What came in them is void, whoever has been told so."""
        self.losses_told = 0
        """So many of these losses consumers have heard of to their end: what they have came in the session behind those. Whoever
        notes in which session he got something notes this, and compares it with `lost_sessions`."""
        self._told_id = self.core.session_id
        """Id of the session that callers know of: not yet the next one, where the loss of this is being told."""
        self.transactions: dict[TransactionKey, Callable[[], None]] = {}
        """Open transactions, and whom to tell when they are aborted."""
        self._channels = channels
        self._on_attached = on_attached
        self._voided = voided
        self._streams: dict[int, SessionStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._consumers: dict[int, ConsumerPort] = {}
        self._last_consumer = 0
        self._is_turn_due = False
        self._voiding: deque[Iterator[int]] = deque()
        """What is to be done for the effect that was performed last: one at most."""
        self._voided_at_once = 0
        """Positions of which consumers were told outside of a turn, since it came to more than goes at once."""
        self._behind: deque[e.Effect] = deque()
        """Effects that wait for their turn."""
        self._is_behind = False
        """Some wait, or are being performed in their turn: what comes of them is behind the others."""
        self.reserve = TransactionReserve(self)
        self._closed: asyncio.Future[None] = self.loop.create_future()
        self._room_line = RoomLine(lambda: self.is_full, self._closed)
        self.feed(e.Learn(Epoch(0), tuple(candidates)))
        self.feed(e.Start())

    def submit(self, command: c.AnyCommand) -> "asyncio.Future[e.Done]":
        """Hands a command in; the future raises `Rejected` or `InDoubt`. What comes in one turn of the loop is one write."""
        future: asyncio.Future[e.Done] = self.loop.create_future()
        self._submit(future, command)
        self.write_soon()
        return future

    def submit_for(self, command: c.AnyCommand, heard: Callable[[e.CommandAnswer], None]) -> None:
        """As `submit`; `heard` is called with the answer or the error, and may submit more."""
        self._submit(heard, command)
        self.write_soon()

    def leave_out(self, transaction: TransactionKey) -> None:
        """An operation of it cannot be submitted: it does not commit without."""
        self.core.window.leave_out(transaction)

    def _submit(self, ticket: e.Ticket, command: c.AnyCommand) -> None:
        if answered := self.core.submit(ticket, command):
            self._perform_all(answered)

    @property
    def takes_last_publish(self) -> bool:
        """Whether a commit may bring its transaction's last publish."""
        return self.core.line.takes_last_publish

    def commit(
        self,
        key: TransactionKey,
        last_publish: c.PublishCommand | None = None,
        published: Callable[[e.CommandAnswer], None] = lambda _: None,
    ) -> "asyncio.Future[e.Done]":
        """Commits a TX, and has others begun by that which are likely to be taken next; as `submit`, and written at once.

        `last_publish`: its last operation, where the set takes that with the commit; `published` hears what becomes of them.
        """
        future: asyncio.Future[e.Done] = self.loop.create_future()
        begins = self.reserve.begins()

        def heard(answer: e.CommandAnswer) -> None:
            # Whoever waited for the commit may be gone.
            self.reserve.begun(begins, answer.begun if isinstance(answer, e.Done) else ())
            published(answer)
            if isinstance(answer, e.Done):
                _settle(future, answer)
            else:
                _fail(future, answer)

        self.before_write()
        self._submit(heard, c.CommitCommand(0, key, 0, begins, last_publish))
        if not self.core.is_busy:
            self.feed(e.Turn())
        return future

    def take_begun(self) -> TransactionKey | None:
        """A TX without a time-out that was begun beforehand; None where there is none."""
        # While a primary is looked for, what was begun is about to be rolled back: a new one begins where the search ends.
        return self.reserve.take() if self.is_attached and not self.is_full else None

    async def begin(self, timeout_ms: int = 0) -> TransactionKey:
        """Opens a TX, or takes one that was begun beforehand. Raises `Rejected`."""
        taken = self.take_begun() if timeout_ms == 0 else None
        if taken is not None:
            return taken
        await self.room()
        begun = self.submit(c.BeginCommand(0, timeout_ms))
        try:
            return key_of(await asyncio.shield(begun))
        except InDoubt as doubt:
            raise never_begun(doubt) from doubt
        except asyncio.CancelledError:
            begun.add_done_callback(self._roll_back if timeout_ms else self._reserve)
            raise

    def _reserve(self, begun: "asyncio.Future[e.Done]") -> None:
        """Somebody else's, or it grows old."""
        self.reserve.begun(0, _begun(begun))

    def _roll_back(self, begun: "asyncio.Future[e.Done]") -> None:
        """Its time-out is nobody else's."""
        for key in _begun(begun):
            unheard(self.submit(c.RollbackCommand(0, key)))

    def begin_ahead(self) -> None:
        """Has TX begun that are likely to be taken next, where no commit does that."""
        for _ in range(self.reserve.begins()):
            self.submit(c.BeginCommand(0, 0)).add_done_callback(
                lambda done: self.reserve.begun(1, _begun(done))
            )

    def write_soon(self) -> None:
        """Has what gathers be written at the end of this turn of the loop, or behind the write under way."""
        if not self._is_turn_due and not self.core.is_busy:
            self._is_turn_due = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self.before_write()
        if self.core.has_unsaid:
            self.feed(e.Turn())

    @property
    def is_attached(self) -> bool:
        """Whether a primary serves it, as far as is known."""
        return self.core.state is State.ATTACHED

    @property
    def is_closed(self) -> bool:
        """Whether it has ended for good."""
        return self.core.state is State.CLOSED

    def is_open(self, key: TransactionKey) -> bool:
        """Whether a transaction of this session may still be committed, as far as is known."""
        return key in self.core.window.operations

    def is_over(self, epoch: Epoch) -> bool:
        """Whether what came in that epoch is void, and those who have it are still to be told."""
        return self._is_behind and epoch < self.core.line.held.kept_from

    @property
    def is_telling_loss(self) -> bool:
        """Whether a session is lost, and consumers have still to hear of it: all that they have is void."""
        return self.losses_told != self.lost_sessions

    def ask(self, question: rq.Question) -> "asyncio.Future[sm.Answer]":
        """Hands a question in; cancelled, it is not asked where it was not yet."""
        future: asyncio.Future[sm.Answer] = self.loop.create_future()
        future.add_done_callback(self._give_up)
        self._say_behind(e.Ask(future, question))
        return future

    def _give_up(self, asked: "asyncio.Future[sm.Answer]") -> None:
        if asked.cancelled():
            self.core.give_up(asked)

    def consume(
        self,
        port: ConsumerPort,
        queue: str,
        credit: int,
        is_exclusive: bool,
        *,
        selector: str = "",
        is_browser: bool = False,
        after: QueuePosition | None = None,
    ) -> int:
        """Opens a consumer; returns its number. `selector`: only messages that match it ("": all).

        `is_browser`: copies of what is in the queue, whoever has it, each once; nothing is taken, and nothing is to be settled.
        `after`: of a browser that goes on, the position behind which it does.
        """
        self._last_consumer += 1
        self._consumers[self._last_consumer] = port
        number = self._last_consumer
        self._say_behind(e.StartConsuming(number, queue, credit, is_exclusive, selector, is_browser, after))
        return self._last_consumer

    def grant(self, consumer: int, credit: int) -> None:
        """More credit for a consumer, told with what else gathers in this turn of the loop."""
        self.core.grant(consumer, credit)
        self.write_soon()

    def drain(self, consumer: int) -> None:
        """Has a consumer get what its credit allows and is there; its port is told `drained` then, and the rest is taken back."""
        self._say_behind(e.Drain(consumer))

    def stop_consuming(
        self, consumer: int, first: "Sequence[asyncio.Future[Any]]" = ()
    ) -> "asyncio.Future[Any] | None":
        """Ends a consumer, behind what was submitted or gathers, what was rejected of its queue, and what is to be done `first`:
        the queue may end with it. It is told nothing more, and what comes for it meanwhile goes back. If its end waits, answers
        what is done when that is said, which nobody may cancel.
        """
        if self._consumers.pop(consumer, None) is None:
            return None
        waited = list(first)
        known = self.core.line.held.consumers.get(consumer)
        if known is not None and not known.is_browser:
            rejects_over = self.rejects_over(known.queue)
            if rejects_over is not None:
                waited.append(rejects_over)
        if not waited:
            self._say_behind(e.StopConsuming(consumer))
            return None
        self._say_behind(e.Drain(consumer))
        ending = asyncio.gather(*waited, return_exceptions=True)
        ending.add_done_callback(lambda _: self._say_behind(e.StopConsuming(consumer)))
        return ending

    def _say_behind(self, request: e.Ask | e.StartConsuming | e.Drain | e.StopConsuming) -> None:
        """Behind the commands that gather. Not where the loss of a session is being told: what gathers ends with that one."""
        if self._told_id == self.core.session_id:
            self.before_write()
        self.feed(request)

    async def room(self) -> None:
        """Returns when the backlog has room for more, to whoever came first. Lets others run now and then, who write what
        gathers."""
        if (self._room_line.waiting or self.has_complete or self.is_full) and not self._closed.done():
            self.has_complete = False
            await self._room_line.line_up()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for answers as may."""
        window = self.core.window
        return window.bytes + self.gathered_bytes > self.BACKLOG_BYTES_MAX or len(window) > 2 * c.ANSWERS_KEPT

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Ends the session, behind what was rejected; what is not answered within the time is left to its own time-out."""
        self.reserve.close()
        if (rejects_over := self.rejects_over(None)) is not None:
            rejects_over.add_done_callback(lambda _: self.feed(e.Close()))
        else:
            self.feed(e.Close())
        try:
            await asyncio.wait_for(asyncio.shield(self._closed), timeout_seconds)
        except TimeoutError:
            pass
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(stream.close() for stream in self._streams.values()))
        self._perform_rest()
        self._perform_all(self.core.abandon())
        self._perform_rest()

    def feed(self, event: e.Input) -> None:
        """One input to the core, and its effects."""
        self._perform_all(self.core.handle(event, now_ms()))
        if self._room_line.waiting and not self.is_full:
            self._room_line.call_all()

    def _perform_all(self, effects: Sequence[e.Effect]) -> None:
        """In their order, and in turns where they are many, or one is much: with a primary go the deliveries of thousands of
        consumers, or hundreds of thousands of one. Meanwhile an epoch that is over is refused by the next, and a session that is
        lost is known by `lost_sessions`: nobody settles its deliveries in the next one's name (DESIGN T6).
        """
        count = 0
        if len(effects) <= EFFECTS_AT_ONCE:
            while count < len(effects) and not self._is_behind:
                self._perform_one(effects[count])
                count += 1
        if count < len(effects):
            self._fall_behind(effects[count:])

    def _fall_behind(self, effects: Sequence[e.Effect]) -> None:
        if not self._is_behind:
            self._is_behind = True
            self.loop.call_soon(self._perform_behind)
        self._behind.extend(effects)
        losses = sum([type(effect) is e.SessionLost for effect in effects])
        if losses:
            self.lost_sessions += losses
            self._perform_for_callers()

    def _perform_behind(self) -> None:
        """Some of those that wait."""
        effects, cost = self._behind, 0
        self._void(PIECE_COST)
        while effects and cost < EFFECTS_AT_ONCE and not self._voiding:
            effect = effects.popleft()
            cost += 1
            if isinstance(effect, e.DeliveriesVoided):
                cost += len(effect.positions) // POSITIONS_PER_EFFECT
            self._perform_one(effect)
        self._is_behind = bool(effects or self._voiding)
        if self._is_behind:
            self.loop.call_soon(self._perform_behind)

    def _perform_for_callers(self) -> None:
        """What consumers are not told waits for nothing where a session is lost: no transaction of it is taken for open."""
        effects, for_consumers = list(self._behind), list[e.Effect]()
        self._behind.clear()
        for effect in effects:
            if isinstance(effect, _FOR_CONSUMERS):
                for_consumers.append(effect)
                if isinstance(effect, e.SessionLost):
                    self._told_id = self.core.session_id
            else:
                self._perform_one(effect)
        # What has come of them is behind the others.
        self._behind.extendleft(reversed(for_consumers))

    def _perform_rest(self) -> None:
        while self._voiding or self._behind:
            self._void(sys.maxsize)
            if self._behind:
                self._perform_one(self._behind.popleft())

    def _begin_voiding(self, voiding: Iterator[int] | None) -> None:
        if voiding is not None:
            self._voiding.append(voiding)
            self._void(PIECE_COST)
            if self._voiding:
                self._fall_behind(())

    def _void(self, cost_max: int) -> None:
        """Goes on with what is to be done for what is void."""
        try:
            do_piece(self._voiding, cost_max)
        except Exception:  # As in `_perform_one`.
            self._voiding.clear()
            _log.exception("%s: what is void was not told to its end", self.set_name)

    def _perform_one(self, effect: e.Effect) -> None:
        """One that raises takes no other along: the core has taken their answers in, and nobody would hear them any more."""
        try:
            self._perform(effect)
        except Exception as error:  # Of whoever is told, or our own.
            _log.exception("%s: %s was not performed", self.set_name, type(effect).__name__)
            ticket = getattr(effect, "ticket", None)
            if isinstance(ticket, asyncio.Future):
                text = f"its answer was not understood: {error}"
                _fail(ticket, InDoubt(ErrorCode.ILLEGAL_STATE, text, resource_set=self.set_name))

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.CommandDone(ticket, value, transaction, begun):
                _settle(ticket, e.Done(value, transaction, begun))
            case e.QuestionAnswered(ticket, answer):
                _settle(ticket, answer)
            case e.Send(stream, messages):
                if (written := self._streams.get(stream)) is not None:
                    self._write(written, messages)
            case e.Delivered(consumer, queue, epoch, messages):
                if (port := self._consumers.get(consumer)) is not None:
                    port.deliver(queue, epoch, messages)
                elif not self.is_telling_loss:
                    # It has stopped while this waited for its turn, or its end waits.
                    self.core.give_back(consumer, queue, epoch, messages)
                    self.write_soon()
            case e.CommandRejected(ticket, code, message, value):
                details: dict[str, object] = {}
                if value:
                    details["branch_state"] = known(BranchState, value, BranchState.UNKNOWN)
                _fail(ticket, Rejected(code, message, resource_set=self.set_name, **details))
            case e.CommandInDoubt(ticket, code, message, transaction):
                details = {"resource_set": self.set_name}
                if transaction is not None:
                    details["transaction_id"] = transaction_id(self.set_name, transaction)
                _fail(ticket, InDoubt(code, message, **details))
            case e.ArmTimer(at):
                if self._timer is not None:
                    self._timer.cancel()
                delay = max(0, at - now_ms()) / 1000
                self._timer = self.loop.call_later(delay, self._tick)
            case e.OpenStream(stream, address):
                channel = self._channels.to(address)
                self._streams[stream] = SessionStream(
                    channel, self.set_name, stream, self._hear, self._written
                )
            case e.CloseStream(stream):
                if (closed := self._streams.pop(stream, None)) is not None:
                    closed.cancel()
            case e.TransactionAborted(transaction):
                if (abort := self.transactions.pop(transaction, None)) is not None:
                    abort()
            case e.AllVoided():
                self._begin_voiding(self._tell_apart(effect))
                if not self._is_behind and self._behind:
                    told = list(self._behind)
                    self._behind.clear()
                    self._perform_all(told)
            case e.DeliveriesVoided(consumer, queue, epoch, positions):
                if not self._is_behind:
                    self._voided_at_once += len(positions)
                    if self._voided_at_once > POSITIONS_AT_ONCE:
                        self._voided_at_once = 0
                        self._fall_behind(())
                if (port := self._consumers.get(consumer)) is not None:
                    self._begin_voiding(port.void(epoch, positions))
                elif self._voided is not None:
                    self._tell_voided(self._voided, queue, epoch, positions)
            case e.ConsumerDrained(consumer):
                if (port := self._consumers.get(consumer)) is not None:
                    port.drained()
            case e.ConsumerStopped(consumer, code, message):
                if (port := self._consumers.pop(consumer, None)) is not None:
                    port.stop(code, message)
            case e.Attached():
                self._on_attached(self, effect)
                self.write_soon()
            case e.SessionLost():
                self.losses_told += 1
                self.lost_sessions = max(self.lost_sessions, self.losses_told)
                self._told_id = self.core.session_id
            case e.PoisonFound(number, kind, text):
                line = "event=poison_refused set=%s command %d (%s) is not sent again: %s"
                _log.error(line, self.set_name, number, kind, text)
            case e.ConsumerStarted():
                pass
            case e.Closed(code, message):
                self._end(code, message)
            case _:
                assert_never(effect)

    def _tell_apart(self, voided: e.AllVoided) -> Iterator[int]:
        """Consumers hear of it next."""
        self._behind.extendleft(reversed((yield from told_apart(voided))))

    def _tell_voided(
        self, voided: Voided, queue: str, epoch: Epoch, positions: tuple[QueuePosition, ...]
    ) -> None:
        try:
            self._begin_voiding(voided(queue, epoch, positions))
        except Exception:  # The application's own; what the core wants done behind it is others' business.
            _log.exception("%s: whoever hears of void deliveries of %s raised", self.set_name, queue)

    def _write(self, stream: SessionStream, messages: tuple[rq.ClientMessage, ...]) -> None:
        try:
            stream.write(messages)
        except UnsayableError:
            stream.write(tuple([said for message in messages for said in self._sayable(message)]))

    def _sayable(self, message: rq.ClientMessage) -> list[rq.ClientMessage]:
        """The message, or what is said in its place, if anything is: whoever asked for it hears why it cannot be said."""
        try:
            check_sayable(self.set_name, message)
            return [message]
        except UnsayableError as error:
            instead, effects = refuse(self.core.line, message, error.code, error.message)
            self._perform_all(effects)
            return instead

    def _tick(self) -> None:
        if not self.is_attached:
            self.before_write()  # As in `_hear`.
        stream = self._streams.get(self.core.line.stream)
        self.feed(e.Tick(stream is not None and stream.has_moved()))

    def _hear(self, event: e.Received | e.StreamLost) -> None:
        # What is settled is no longer in hand when a new epoch voids that, for its credit was granted already; and what gathers
        # ends with its session: the next one may hold the same messages for somebody else.
        if not self.is_attached or _ends_session(event):
            self.before_write()
        if isinstance(event, e.StreamLost):
            del self._streams[event.stream]
        self.feed(event)

    def _written(self, stream: int) -> None:
        self.before_write()
        if self.core.written(stream):
            self.feed(e.Turn())

    def _end(self, code: ErrorCode, message: str) -> None:
        self.before_write()  # What gathers hears of it, for no write follows that would take it along.
        for number in list(self._consumers):
            # Whoever hears of it may stop others.
            if (port := self._consumers.pop(number, None)) is not None:
                port.stop(code, message or "the session is closed")
        self._room_line.call_all()
        if not self._closed.done():
            self._closed.set_result(None)


def _ends_session(event: e.Received | e.StreamLost) -> bool:
    return isinstance(event, e.Received) and any(
        type(message) is sm.SessionEnded for message in event.messages
    )


def key_of(done: e.Done) -> tuple[LogIndex, Epoch]:
    """The transaction that a begin opened."""
    assert done.transaction is not None, "a begin is answered with its transaction"
    return done.transaction


def never_begun(doubt: InDoubt) -> Rejected:
    """What a begin comes to whose answer is lost: nobody has the name of what it may have opened, so that cannot commit."""
    return Rejected(ErrorCode.ROLLED_BACK, f"the transaction never began: {doubt.message}", **doubt.details)


def _begun(done: "asyncio.Future[e.Done]") -> tuple[TransactionKey, ...]:
    """What a begin opened, if it did."""
    is_done = not done.cancelled() and done.exception() is None
    return (key_of(done.result()),) if is_done else ()


def _settle(ticket: e.Ticket, result: object) -> None:
    if isinstance(ticket, asyncio.Future):
        if not ticket.done():
            ticket.set_result(result)
    elif callable(ticket):
        ticket(result)


def _fail(ticket: e.Ticket, error: Exception) -> None:
    if isinstance(ticket, asyncio.Future):
        if not ticket.done():
            ticket.set_exception(error)
    elif callable(ticket):
        ticket(error)
