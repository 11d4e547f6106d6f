"""Attachments: which stream serves which session, how long a session has had none, and how sessions end (DESIGN 6).

Law: one stream at a time serves a session. A lost stream leaves the session and what it holds until its time-out; what the
session had in hand, or had open, ends by records of its own before the record that closes it.

    attached --stream lost--> away --attach--> attached        attached | away --detach, time-out--> ended
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

from lockstep.core.due_times import DueTimes
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import QueuePosition, SessionKey
from lockstep.core.position_sets import PART_MAX, PositionSet
from lockstep.core.queues import Queue
from lockstep.core.records import CloseSession, OpenSession, RollbackReason
from lockstep.core.requests import AttachSession, HeldDeliveries, UnansweredSettle
from lockstep.core.server_messages import (
    AttachRefused,
    CommandAnswered,
    SessionAttached,
)
from lockstep.core.sessions import Session
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.wire_numbers import error_code
from services.primary.core import branches
from services.primary.core.aftermath import Aftermath
from services.primary.core.auto_deletion import AutoDeletion
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context, check_name, shown
from services.primary.core.removing import append_requeue
from services.primary.core.transacting import append_rollback

SILENCE_LOOK_MS = 1000
"""How often silent streams are looked for: much less often than ticks come."""

LOOKED_AT_MAX = 2000
"""Sessions at one look: a millisecond's work."""
CLOSED_MAX = 4000
"""Consumers that end in one go because their streams are silent; one more stream, and all of its own."""
_STREAM_COST = 20
"""Of closing a stream, in consumers."""
_HELD_COST = 10
"""Of giving back some of what is held of a queue, beside its messages."""
_QUEUE_COST = 10
"""Of an exclusive queue that ends, in messages."""
_TRANSACTION_COST = 10
"""Of rolling back one that has done nothing, in operations."""


class Attachments:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams, aftermath: Aftermath) -> None:
        self._context = context
        self._streams = streams
        self._aftermath = aftermath
        self._attached: dict[SessionKey, int] = {}
        """The stream that serves a session."""
        self._not_back: dict[SessionKey, None] = dict.fromkeys(sorted(context.state.sessions.by_key))
        """Away since before this epoch, and not looked at yet: their time-outs run from the first look on, when it serves."""
        self._time_outs: DueTimes[SessionKey] = DueTimes()
        """Of all others without a stream."""
        self._timed_out: dict[SessionKey, None] = {}
        """Whose time-out is over, and which have not been ended yet."""
        self._silent: dict[int, None] = {}
        """Streams that were silent for too long at the last look."""
        self._looked_ms = context.now.boottime_ms
        self.auto_deletion = AutoDeletion(context)
        self._ends_with_epoch: set[SessionKey] = set()
        """Sessions whose clients do not go on with what they have open or in hand when another primary leads."""

    # --- attaching ---

    def attach(self, number: int, message: AttachSession) -> ClientStream:
        """First message of a stream: open or resume a session."""
        context = self._context
        stream = self._streams.by_number[number] = ClientStream(number, heard_ms=context.now.boottime_ms)
        try:
            check_name("session", message.session_id, context.settings.name_bytes_max)
        except Rejected as error:
            refusal = self._refused(error.code, error.message)
            self._streams.tell(number, lambda: refusal)
            return stream
        session = (
            context.state.sessions.get(message.session)
            if message.session
            else context.state.sessions.find(message.session_id)
        )
        if message.session and (
            session is None or session.epoch != message.session_epoch or session.id != message.session_id
        ):
            text = f"session {shown(message.session_id)} is not known here"
            self._streams.tell(number, lambda: self._refused(ErrorCode.UNKNOWN_SESSION, text))
            return stream
        if session is None:
            if len(context.state.sessions.by_key) >= context.settings.sessions_max:
                text = f"{context.settings.sessions_max} sessions are open"
                context.note_refusal(LimitReached("sessions_max", ErrorCode.UNAVAILABLE, text))
                self._streams.tell(number, lambda: self._refused(ErrorCode.UNAVAILABLE, text))
                return stream
            timeout_ms = min(max(message.timeout_ms, 0), context.settings.session_timeout_ms_max)
            key = SessionKey(context.writer.append(OpenSession(None, message.session_id, timeout_ms), False))
            session = context.state.sessions.get(key)
            assert session is not None
        else:
            context.figures.resumed += 1
        context.alone.do(self._join(stream, session, message))
        return stream

    def _refused(self, code: ErrorCode, text: str) -> AttachRefused:
        return AttachRefused(*self._streams.head(), code, text, self._streams.candidates)

    def _join(self, stream: ClientStream, session: Session, message: AttachSession) -> Iterator[int]:
        """In steps that say what they cost; nothing comes between."""
        streams = self._streams
        old = self._attached.get(session.key)
        if old is not None:
            self.close_stream(old)
            streams.close(old)
        stream.session = session.key
        self._attached[session.key] = stream.number
        self._is_not_away(session.key)
        self.auto_deletion.came_back(session.key)
        if message.outlives_hand_over:
            self._ends_with_epoch.discard(session.key)
        else:
            self._ends_with_epoch.add(session.key)
        yield from self._release_lost_deliveries(session, message)
        next_number = session.next_number
        streams.tell(
            stream.number,
            lambda: SessionAttached(
                *streams.head(),
                session.key,
                session.epoch,
                next_number,
                streams.candidates,
                self._context.state.open_from,
                takes_last_publish=True,
            ),
        )
        for number, answer in session.answers.items():
            if number > message.heard:
                code = error_code(answer.code)
                streams.answer(stream.number, CommandAnswered(number, code, answer.message, answer.value))

    def _release_lost_deliveries(self, session: Session, message: AttachSession) -> Iterator[int]:
        """What the session holds beyond what the client has in hand got lost with the last stream."""
        context, in_hand = self._context, _InHand()
        if not (queues := context.dispatch.holds_in(session.key)):
            return
        kept = range(context.state.open_from, context.epoch + 1)
        yield from in_hand.take(message.held, kept)
        yield from in_hand.leave_settled(session, message.settling)
        for queue_id in queues:
            queue = context.state.queues.by_id[queue_id]
            for held in context.dispatch.held_in(session.key, queue_id):
                lost = in_hand.lost_of(queue.name, held)
                context.dispatch.let_go(session.key, queue_id, lost)
                context.dispatch.returned(queue_id, lost)
                context.expiry.watch_again(queue, lost)
                yield 1 + len(held) // 2
        yield from in_hand.take_apart()

    def outlives_hand_over(self, session: SessionKey) -> bool:
        """Whether its client goes on with what it has open and in hand where the set is handed over (T8)."""
        return session not in self._ends_with_epoch

    # --- ends ---

    def close_stream(self, number: int) -> None:
        """The stream is gone: its consumers end, its session waits for the client to come back."""
        stream = self._streams.remove(number)
        if stream is None:
            return
        for consumer in stream.consumers.values():
            self._context.dispatch.remove_consumer(consumer)
        if self._attached.get(stream.session) == number:
            del self._attached[stream.session]
            session = self._context.state.sessions.get(stream.session)
            if session is not None:
                self._time_outs.set(session.key, self._context.now.boottime_ms + session.timeout_ms)
            self.auto_deletion.consumers_lost(stream.session, stream.consumers.values())

    def detach(self, stream: ClientStream) -> None:
        """The client is done with its session."""
        self._context.alone.do(self._detach(stream))

    def _detach(self, stream: ClientStream) -> Iterator[int]:
        if self._context.state.sessions.get(stream.session) is not None:
            yield from self._end(stream.session, is_lost=False)
        if self._streams.by_number.get(stream.number) is stream:
            self._streams.tell(stream.number, lambda: self._streams.ended(ErrorCode.NONE, "detached"))
            self._streams.close_when_committed(stream.number)

    def _is_not_away(self, session: SessionKey) -> None:
        """It has a stream, or has ended."""
        self._not_back.pop(session, None)
        self._time_outs.drop(session)
        self._timed_out.pop(session, None)

    @property
    def is_behind(self) -> bool:
        """Whether sessions are left that are to be ended, or streams that are to be closed."""
        return bool(self._timed_out or self._silent)

    def look(self) -> None:
        """Find the sessions whose clients stayed away too long, and end the queues that nobody comes back to."""
        now_ms, sessions = self._context.now.boottime_ms, self._context.state.sessions
        for key in list(islice(self._not_back, LOOKED_AT_MAX)):
            del self._not_back[key]
            if (session := sessions.get(key)) is not None:
                self._time_outs.set(key, now_ms + session.timeout_ms)
        for key in self._time_outs.take(now_ms, LOOKED_AT_MAX):
            if sessions.get(key) is not None:
                self._timed_out[key] = None
        self.auto_deletion.look(is_all_found=self._aftermath.has_looked_through)

    def end_timed_out(self) -> None:
        """End sessions that have timed out: as many as leave others their turn, for a whole rack may vanish at once."""
        if self._timed_out:
            self._context.alone.do(self._end_some())

    def _end_some(self) -> Iterator[int]:
        settings, sessions = self._context.settings, self._context.state.sessions
        ended, left = 0, settings.given_back_max
        while left > 0 and ended < settings.session_ends_max and self._timed_out:
            key = next(iter(self._timed_out))
            del self._timed_out[key]
            if sessions.get(key) is not None:
                left -= yield from self._end(key, is_lost=True)
                ended += 1

    def pace(self, number: int, is_full: bool) -> None:
        """Much waits to be written to a stream, or does not any more: its consumers get nothing meanwhile."""
        stream = self._streams.by_number.get(number)
        if stream is None:
            return
        stream.is_full = is_full
        for consumer in stream.consumers.values():
            if is_full:
                self._context.dispatch.pause(consumer)
            else:
                self._context.dispatch.resume(consumer)

    def close_silent(self) -> None:
        """Close the streams of consumers that hang: their sessions go on, or end, as after a lost connection. As many as leave
        others their turn: all clients behind one link fall silent together."""
        now_ms, silence_ms = self._context.now.boottime_ms, self._context.settings.client_silence_ms
        by_number = self._streams.by_number
        if now_ms - self._looked_ms >= min(silence_ms, SILENCE_LOOK_MS):
            self._looked_ms = now_ms
            for number, stream in by_number.items():
                if stream.consumers and now_ms - stream.heard_ms >= silence_ms:
                    self._silent[number] = None
        closed = 0
        while self._silent and closed < CLOSED_MAX:
            number = next(iter(self._silent))
            del self._silent[number]
            found = by_number.get(number)
            if found is None or now_ms - found.heard_ms < silence_ms:
                continue
            closed += _STREAM_COST + len(found.consumers)
            text = f"the client of session {found.session} was silent for {now_ms - found.heard_ms} ms"
            self._streams.end(number, ErrorCode.UNAVAILABLE, text)
            self.close_stream(number)

    def _end(self, key: SessionKey, is_lost: bool) -> Generator[int, None, int]:
        """Roll back its transactions, give back what it holds, have its exclusive queues end, close it; in steps that say what
        they cost.

        Nothing comes between, however much that is: its client may come back at any moment, and either all of what it has in
        hand is its, or nothing; and nothing overtakes what is given back. Returns what it took, in messages and operations.
        """
        context = self._context
        number = self._attached.get(key)
        stream = self._streams.by_number.get(number) if number is not None else None
        if stream is not None:
            for consumer in stream.consumers.values():
                context.dispatch.remove_consumer(consumer)
            self.auto_deletion.consumers_lost(key, stream.consumers.values())
            yield len(stream.consumers)
            stream.consumers.clear()
        cost = 1
        for transaction in sorted(context.progress.of(key)):
            buffer = context.state.transactions.get(transaction)
            if transaction not in context.progress:
                continue
            if context.progress.is_name(transaction):
                context.progress.end(transaction)
            elif not isinstance(buffer, DtxBuffer):
                cost += len(buffer.operations) if buffer is not None else 0
                append_rollback(context, transaction, RollbackReason.SESSION_ENDED)
                yield from context.state.finish_in_steps()
            cost += _TRANSACTION_COST
            yield 2 * _TRANSACTION_COST
        for branch in context.state.transactions.branches_of(key):
            if context.state.transactions.get(branch.key) is branch and key in branch.associations:
                cost += len(branch.operations) + _TRANSACTION_COST
                branches.session_ended(context, branch, key)
                yield from context.state.finish_in_steps()
                yield 2 * _TRANSACTION_COST
        for queue_id in context.dispatch.held_once_in(key):
            queue = context.state.queues.by_id[queue_id]
            yield 1
            for held in context.dispatch.held_in(key, queue_id):
                cost += len(held)
                self._give_back(key, queue, held, is_lost)
                yield _HELD_COST + len(held) // 2
        # What has failed too often now is a dead letter, and does not go with its queue.
        yield from context.state.finish_in_steps()
        yield from self._aftermath.settle_in_steps()
        for _ in self.auto_deletion.exclusive_end(key):
            cost += _QUEUE_COST
            yield 2 * _QUEUE_COST
        yield from self._close(key)
        return cost

    def _give_back(
        self, key: SessionKey, queue: Queue, positions: Sequence[QueuePosition], is_lost: bool
    ) -> None:
        context = self._context
        context.dispatch.let_go(key, queue.id, positions)
        if is_lost:
            append_requeue(context, queue, positions)
        else:
            context.dispatch.returned(queue.id, positions)
            context.expiry.watch_again(queue, positions)

    def _close(self, key: SessionKey) -> Iterator[int]:
        """A session that has nothing any more but perhaps a stream."""
        context = self._context
        self._attached.pop(key, None)
        yield from self.auto_deletion.session_ended(key)
        context.writer.append(CloseSession(None, key), False)
        context.dispatch.forget_session(key)
        self._is_not_away(key)
        self._ends_with_epoch.discard(key)


class _InHand:
    """What a client that comes back has in hand, by the names of queues. Lives as long as it takes to join its session."""

    def __init__(self) -> None:
        self.by_queue: dict[str, PositionSet] = {}

    def take(self, held: Iterable[HeldDeliveries], kept: range) -> Iterator[int]:
        """Deliveries of these epochs. In steps that say what they cost, as all of it."""
        for each in held:
            yield 1
            if each.epoch in kept:
                positions = self.by_queue.setdefault(each.queue, PositionSet())
                for some in _few_of(each.positions):
                    positions.update(some)
                    yield len(some) // 2

    def leave_settled(self, session: Session, settling: Sequence[UnansweredSettle]) -> Iterator[int]:
        """Without what the last settle that names it has settled: a session that holds it was given it again behind that, and the
        client does not know. What a rejected settle names, and what one that is partial has left, comes back to the client, and
        one that is not taken yet is to find it.
        """
        settled: dict[str, PositionSet] = {}
        for settle in settling:
            yield 1
            answer = session.answers.get(settle.number)
            done = answer.value if answer is not None and not answer.code else 0
            positions = settled.setdefault(settle.queue, PositionSet())
            for some in _few_of(settle.positions[:done]):
                positions.update(some)
                yield len(some)
            for some in _few_of(settle.positions[done:]):
                positions.difference_update(some)
                yield len(some)
        for queue, positions in settled.items():
            yield 1
            if (in_hand := self.by_queue.get(queue)) is not None:
                for some in positions.parts():
                    in_hand.difference_update(some)
                    yield len(some)
            yield from positions.take_apart()

    def lost_of(self, queue: str, held: list[QueuePosition]) -> list[QueuePosition]:
        """Those of these that it has not."""
        in_hand = self.by_queue.get(queue)
        has = in_hand.among(held) if in_hand is not None else ()
        return [position for position in held if position not in has] if has else held

    def take_apart(self) -> Iterator[int]:
        """Leave nothing."""
        for positions in self.by_queue.values():
            yield from positions.take_apart()


def _few_of(positions: Sequence[QueuePosition]) -> Iterator[Sequence[QueuePosition]]:
    return (positions[begin : begin + PART_MAX] for begin in range(0, len(positions), PART_MAX))
