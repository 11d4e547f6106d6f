"""Client streams and their sessions on the primary (DESIGN 6).

Law: a command is executed when its number is the next of its session, answered again when it was executed before, and pushed back
when it leaves a gap; numbers are checked against what was appended. One stream at a time serves a session; a lost stream leaves
the session and what it holds until its time-out.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.core.clock import Now
from lockstep.core.commands import (
    Answers,
    AnyServerMessage,
    AttachRefused,
    AttachSession,
    BeginCommand,
    ClientMessage,
    Command,
    CommandAnswered,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from lockstep.core.effects import ClaimName, CloseClientStream, TellClient
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SessionKey, SetName
from lockstep.core.inputs import NameClaimed, Verdict
from lockstep.core.records import (
    CloseSession,
    CommandRef,
    DeleteQueue,
    OpenSession,
    RejectCommand,
    RollbackReason,
)
from lockstep.core.sessions import Session
from services.primary.core.command_table import execute
from services.primary.core.context import Context, Request, answer_of
from services.primary.core.dispatch import Consumer
from services.primary.core.gate import CommitGate
from services.primary.core.removing import append_requeue
from services.primary.core.transacting import append_rollback, operation_failed
from services.primary.core.wiring_commands import exclusive_queues, needs_claim


@dataclass(slots=True)
class ClientStream:
    """One stream of a client; ends with its connection."""

    number: int
    session: SessionKey = SessionKey(0)
    """0: not attached."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    blocked_by: int = 0
    """The claim that the next command waits for; 0: none."""
    backlog: deque[ClientMessage] = field(default_factory=deque)
    """What came behind a blocked command."""
    pushed_back_from: int = 0
    """Commands from this number on were pushed back: what the client had sent behind them is dropped, until it comes again."""
    answers: list[CommandAnswered] = field(default_factory=list)
    """On their way out with the next flush."""


class Clients:
    """All client streams and the presence of sessions, for one epoch; driven by the primary core."""

    def __init__(self, context: Context, gate: CommitGate, now: Now) -> None:
        self._context = context
        self._gate = gate
        self.streams: dict[int, ClientStream] = {}
        self._attached: dict[SessionKey, int] = {}
        """The stream that serves a session."""
        self._away_since_ms: dict[SessionKey, int] = dict.fromkeys(
            sorted(context.state.sessions.by_key), now.boottime_ms
        )
        self._away_consumers: dict[SessionKey, list[Consumer]] = {}
        """Consumers that ended with their stream; their auto-delete queues end with the session."""
        self._claims: dict[int, tuple[int, Command, str, str]] = {}
        """Claims under way: (stream, command, kind, name)."""
        self._claim_number = 0
        self.candidates: tuple[str, ...] = ()
        """Addresses of brokers that may serve the set; the driver fills them in where they are empty."""
        self.serve_until_ms = 0
        self._touched: dict[int, None] = {}

    # --- sending ---

    def tell(self, stream: ClientStream | int, make: Callable[[], AnyServerMessage]) -> None:
        """Send what `make` builds when everything appended so far is committed."""
        number = stream if isinstance(stream, int) else stream.number
        self._gate.wait(self._context.writer.log.end, lambda: self.tell_now(number, make()))

    def tell_now(self, number: int, message: AnyServerMessage) -> None:
        """Send at once; nothing to a stream that is closed."""
        if number in self.streams:
            self.flush_answers(number)
            self._context.effects.append(
                TellClient(self._context.state.set_name, number, message, self.serve_until_ms)
            )

    def answer(self, stream: ClientStream, answered: CommandAnswered) -> None:
        """Answer a command when everything appended so far is committed; answers gather into one message."""
        self._gate.wait(self._context.writer.log.end, lambda: self.answer_now(stream.number, answered))

    def answer_now(self, number: int, answered: CommandAnswered) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            stream.answers.append(answered)
            self._touched[number] = None

    def flush_answers(self, number: int | None = None) -> None:
        """Send the answers gathered, of one stream or of all."""
        numbers = [number] if number is not None else list(self._touched)
        context = self._context
        for touched in numbers:
            self._touched.pop(touched, None)
            stream = self.streams.get(touched)
            if stream is not None and stream.answers:
                message = Answers(context.epoch, context.writer.log.commit_index, tuple(stream.answers))
                stream.answers = []
                context.effects.append(
                    TellClient(context.state.set_name, touched, message, self.serve_until_ms)
                )

    # --- attaching ---

    def attach(self, number: int, message: AttachSession) -> ClientStream:
        """First message of a stream: open or resume a session."""
        context = self._context
        stream = self.streams[number] = ClientStream(number)
        session = (
            context.state.sessions.get(message.session)
            if message.session
            else context.state.sessions.find(message.session_id)
        )
        if message.session and (
            session is None or session.epoch != message.session_epoch or session.id != message.session_id
        ):
            text = f"session {message.session_id} is not known here"
            self.tell(stream, lambda: self._refused(ErrorCode.UNKNOWN_SESSION, text))
            return stream
        if session is None:
            timeout_ms = min(max(message.timeout_ms, 0), context.settings.session_timeout_ms_max)
            key = SessionKey(context.writer.append(OpenSession(None, message.session_id, timeout_ms), False))
            session = context.state.sessions.get(key)
            assert session is not None
        self._join(stream, session, message)
        return stream

    def _refused(self, code: ErrorCode, text: str) -> AttachRefused:
        return AttachRefused(
            self._context.epoch, self._context.writer.log.commit_index, code, text, self.candidates
        )

    def _join(self, stream: ClientStream, session: Session, message: AttachSession) -> None:
        old = self._attached.get(session.key)
        if old is not None:
            self.close_stream(old, Now(0, 0))
            self._context.effects.append(CloseClientStream(self._context.state.set_name, old))
        stream.session = session.key
        self._attached[session.key] = stream.number
        self._away_since_ms.pop(session.key, None)
        self._away_consumers.pop(session.key, None)
        self._release_lost_deliveries(session.key, message)
        next_number = session.next_number
        self.tell(
            stream,
            lambda: SessionAttached(
                self._context.epoch,
                self._context.writer.log.commit_index,
                session.key,
                session.epoch,
                next_number,
                self.candidates,
            ),
        )
        for number, answer in session.answers.items():
            if number > message.heard:
                code = ErrorCode(answer.code)
                self.answer(stream, CommandAnswered(number, code, answer.message, answer.value))

    def _release_lost_deliveries(self, session: SessionKey, message: AttachSession) -> None:
        """What the session holds beyond what the client has in hand got lost with the last stream."""
        context = self._context
        in_hand = {
            (held.queue, position)
            for held in message.held
            if held.epoch == context.epoch
            for position in held.positions
        }
        for queue_id, positions in context.dispatch.held_by(session).items():
            queue = context.state.queues.by_id[queue_id]
            lost = [position for position in positions if (queue.name, position) not in in_hand]
            context.dispatch.let_go(session, queue_id, lost)
            context.dispatch.returned(queue_id, lost)
            context.expiry.watch(queue, lost)

    # --- commands ---

    def command(self, stream: ClientStream, command: Command, now: Now) -> None:
        """Execute one command, answer it again, or push it back."""
        context = self._context
        session = context.state.sessions.get(stream.session)
        if session is None:
            self.tell_now(stream.number, self._ended(ErrorCode.UNKNOWN_SESSION, "no session is attached"))
            return
        if command.number < session.next_number:
            self._repeat(stream, session, command)
            return
        if stream.pushed_back_from and command.number != stream.pushed_back_from:
            return
        stream.pushed_back_from = 0
        if command.number > session.next_number:
            self._push_back(stream, session, ErrorCode.SEQUENCE_GAP, f"expects command {session.next_number}")
            return
        if context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
            self._push_back(stream, session, ErrorCode.UNAVAILABLE, "too much waits for being committed")
            return
        try:
            claim = needs_claim(context, command)
        except Rejected as error:
            self._reject(stream, command, error)
            return
        if claim is not None:
            self._claim(stream, command, *claim)
            return
        self._execute(stream, command, now)

    def _repeat(self, stream: ClientStream, session: Session, command: Command) -> None:
        answer = session.answers.get(command.number)
        if answer is not None:
            code = ErrorCode(answer.code)
            self.answer(stream, CommandAnswered(command.number, code, answer.message, answer.value))

    def _push_back(self, stream: ClientStream, session: Session, code: ErrorCode, text: str) -> None:
        context = self._context
        stream.pushed_back_from = session.next_number
        self.tell_now(
            stream.number,
            PushedBack(context.epoch, context.writer.log.commit_index, session.next_number, code, text),
        )

    def _execute(self, stream: ClientStream, command: Command, now: Now) -> None:
        request = Request(CommandRef(stream.session, command.number), now)
        try:
            execute(self._context, request, command)
        except Rejected as error:
            self._reject(stream, command, error)
            return
        answered = answer_of(self._context, request.ref)
        if isinstance(command, BeginCommand):
            # A name says nothing of what is committed; the client has it before it may commit (T1).
            self.answer_now(stream.number, answered)
        else:
            self.answer(stream, answered)

    def _reject(self, stream: ClientStream, command: Command, error: Rejected) -> None:
        context = self._context
        ref = CommandRef(stream.session, command.number)
        transaction = getattr(command, "transaction", None)
        if transaction is not None:
            operation_failed(context, stream.session, transaction)
        context.writer.append(RejectCommand(ref, error.code, error.message), False)
        self.answer(stream, answer_of(context, ref))

    # --- claims ---

    def _claim(self, stream: ClientStream, command: Command, kind: str, name: str) -> None:
        self._claim_number += 1
        self._claims[self._claim_number] = (stream.number, command, kind, name)
        stream.blocked_by = self._claim_number
        self._context.effects.append(ClaimName(self._context.state.set_name, self._claim_number, kind, name))

    def claimed(self, given: NameClaimed, now: Now) -> ClientStream | None:
        """etcd answered a claim; answers the stream whose backlog can go on, None if it is gone."""
        claim = self._claims.pop(given.request, None)
        if claim is None:
            return None
        number, command, kind, name = claim
        stream = self.streams.get(number)
        if stream is None or stream.blocked_by != given.request:
            return None
        stream.blocked_by = 0
        session = self._context.state.sessions.get(stream.session)
        if session is None or command.number != session.next_number:
            return stream
        if given.verdict is Verdict.DONE:
            self._execute(stream, command, now)
        elif given.verdict is Verdict.FAILED:
            text = f"{kind} {name!r} belongs to resource set {given.owner!r}"
            self._reject(stream, command, Rejected(ErrorCode.ALREADY_EXISTS, text))
        else:
            self._claim(stream, command, kind, name)
        return stream

    # --- ends ---

    def close_stream(self, number: int, now: Now) -> None:
        """The stream is gone: its consumers end, its session waits for the client to come back."""
        stream = self.streams.pop(number, None)
        if stream is None:
            return
        for consumer in stream.consumers.values():
            self._context.dispatch.remove_consumer(consumer)
        if self._attached.get(stream.session) == number:
            del self._attached[stream.session]
            self._away_since_ms[stream.session] = now.boottime_ms
            self._away_consumers.setdefault(stream.session, []).extend(stream.consumers.values())

    def detach(self, stream: ClientStream) -> None:
        """The client is done with its session."""
        session = stream.session
        if self._context.state.sessions.get(session) is not None:
            self.end_session(session, is_lost=False)
        self.tell(stream, lambda: self._ended(ErrorCode.NONE, "detached"))
        number, set_name = stream.number, self._context.state.set_name
        self._gate.wait(
            self._context.writer.log.end,
            lambda: self._context.effects.append(CloseClientStream(set_name, number)),
        )

    def end_timed_out(self, now: Now) -> None:
        """End the sessions whose clients stayed away too long."""
        for key, since_ms in sorted(self._away_since_ms.items()):
            session = self._context.state.sessions.get(key)
            if session is None:
                del self._away_since_ms[key]
            elif now.boottime_ms - since_ms >= session.timeout_ms:
                self.end_session(key, is_lost=True)

    def end_session(self, key: SessionKey, is_lost: bool) -> None:
        """Roll back its transactions, give back what it holds, delete its exclusive queues, close it."""
        context = self._context
        for buffer in context.state.transactions.of_session(key):
            if buffer.key in context.progress:
                append_rollback(context, buffer.key, RollbackReason.SESSION_ENDED)
        for queue_id, positions in context.dispatch.held_by(key).items():
            queue = context.state.queues.by_id[queue_id]
            context.dispatch.let_go(key, queue_id, positions)
            if is_lost:
                append_requeue(context, queue, positions)
            else:
                context.dispatch.returned(queue_id, positions)
                context.expiry.watch(queue, positions)
        number = self._attached.pop(key, None)
        stream = self.streams.get(number) if number is not None else None
        if stream is not None:
            for consumer in stream.consumers.values():
                context.dispatch.remove_consumer(consumer)
                self.delete_unused(consumer)
            stream.consumers.clear()
        for consumer in self._away_consumers.pop(key, ()):
            self.delete_unused(consumer)
        for queue in exclusive_queues(context, key):
            context.writer.append(DeleteQueue(None, queue.id), queue.is_durable)
        context.writer.append(CloseSession(None, key), False)
        context.dispatch.forget_session(key)
        self._away_since_ms.pop(key, None)

    def delete_unused(self, consumer: Consumer) -> None:
        """A consumer left on purpose: an auto-delete queue ends with its last one."""
        context = self._context
        queue = context.state.queues.by_id.get(consumer.queue)
        if queue is not None and queue.definition.is_auto_delete and not context.dispatch.consumers(queue.id):
            context.writer.append(DeleteQueue(None, queue.id), queue.is_durable)

    def end_all(self, set_name: SetName, code: ErrorCode, text: str) -> None:
        """This process stops serving: clients resume elsewhere."""
        for number in sorted(self.streams):
            self._context.effects.append(TellClient(set_name, number, self._ended(code, text), 0))
            self._context.effects.append(CloseClientStream(set_name, number))
        self.streams.clear()

    def _ended(self, code: ErrorCode, text: str) -> SessionEnded:
        return SessionEnded(self._context.epoch, self._context.writer.log.commit_index, code, text)
