"""Commands of clients on the primary: numbered, executed once, answered (DESIGN 6).

Law: a command is executed when its number is the next of its session, answered again when it was executed before, and pushed back
when it leaves a gap; numbers are checked against what was appended.
"""

from lockstep.core.clock import Now
from lockstep.core.commands import BeginCommand, Command, CommandAnswered, PushedBack
from lockstep.core.effects import ClaimName
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.inputs import NameClaimed, Verdict
from lockstep.core.records import CommandRef, RejectCommand
from lockstep.core.sessions import Session
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.command_table import execute
from services.primary.core.context import Context, Request, answer_of
from services.primary.core.transacting import operation_failed
from services.primary.core.wiring_commands import needs_claim


class Clients:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._claims: dict[int, tuple[int, Command, str, str]] = {}
        """Claims under way: (stream, command, kind, name)."""
        self._claim_number = 0

    def command(self, stream: ClientStream, command: Command, now: Now) -> None:
        """Execute one command, answer it again, or push it back."""
        context = self._context
        session = context.state.sessions.get(stream.session)
        if session is None:
            self._streams.tell_now(stream.number, self._streams.no_session())
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
            answered = CommandAnswered(command.number, code, answer.message, answer.value)
        else:
            text = f"command {command.number} is over, and its answer is not kept any more"
            answered = CommandAnswered(command.number, ErrorCode.EXPIRED, text, 0)
        self._streams.answer(stream.number, answered)

    def _push_back(self, stream: ClientStream, session: Session, code: ErrorCode, text: str) -> None:
        stream.pushed_back_from = session.next_number
        self._streams.tell_now(
            stream.number, PushedBack(*self._streams.head(), session.next_number, code, text)
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
            self._streams.answer_now(stream.number, answered)
        else:
            self._streams.answer(stream.number, answered)

    def _reject(self, stream: ClientStream, command: Command, error: Rejected) -> None:
        context = self._context
        ref = CommandRef(stream.session, command.number)
        transaction = getattr(command, "transaction", None)
        if transaction is not None:
            operation_failed(context, stream.session, transaction)
        context.writer.append(RejectCommand(ref, error.code, error.message), False)
        self._streams.answer(stream.number, answer_of(context, ref))

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
        stream = self._streams.by_number.get(number)
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
