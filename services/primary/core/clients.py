"""Commands of clients on the primary: numbered, executed once, answered (DESIGN 6).

Law: a command is executed when its number is the next of its session, answered again when it was executed before, and pushed back
when it leaves a gap; numbers are checked against what was appended.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    Command,
    CommitCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.inputs import NameClaimed, Verdict
from lockstep.core.records import CommandRef, RejectCommand
from lockstep.core.requests import CloseConsumer, Heard
from lockstep.core.server_messages import (
    CommandAnswered,
    PushedBack,
)
from lockstep.core.sessions import Session
from lockstep.core.wire_numbers import error_code
from services.primary.core.alone import LongCommand
from services.primary.core.claims_ahead import ClaimsAhead
from services.primary.core.client_streams import ClientStream, ClientStreams, CloseHeldBack
from services.primary.core.command_table import execute
from services.primary.core.context import Context, Request, answer_of
from services.primary.core.early_messages import message_bytes
from services.primary.core.long_selections import LongSelections
from services.primary.core.name_claims import Claim, NameClaims
from services.primary.core.purging import LongPurge, LongPurges
from services.primary.core.transacting import operation_failed
from services.primary.core.waiting_rejects import WaitingRejects
from services.primary.core.whole_transactions import commit_with_accepts
from services.primary.core.wiring_commands import needs_claim


class Clients:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams, names: NameClaims) -> None:
        self._context = context
        self._streams = streams
        self._names = names
        self._ahead = ClaimsAhead(context, streams, names)
        self.rejects = WaitingRejects(context, streams)
        self.purges = LongPurges(context, streams)
        self.selections = LongSelections(context, streams)

    def command(self, stream: ClientStream, command: AnyCommand) -> None:
        """Execute one command, answer it again, or push it back; raises `LongSelection`: it is to be taken again."""
        context = self._context
        session = context.state.sessions.get(stream.session)
        if session is None:
            self._streams.tell_no_session(stream.number)
            return
        if command.number < session.next_number:
            self._repeat(stream, session, command)
            return
        if stream.pushed_back_from and command.number >= stream.pushed_back_from:
            if command.number > stream.pushed_back_from:
                stream.dropped_to = max(stream.dropped_to, command.number)
                return
            stream.pushed_back_from = 0
        if command.number > session.next_number:
            stream.dropped_to = max(stream.dropped_to, command.number)
            self._push_back(
                stream, session.next_number, ErrorCode.SEQUENCE_GAP, f"expects command {session.next_number}"
            )
            return
        if context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
            stream.dropped_to = max(stream.dropped_to, command.number)
            self._push_back(
                stream, session.next_number, ErrorCode.UNAVAILABLE, "too much waits for being committed"
            )
            return
        try:
            claim = needs_claim(context, command)
            must_wait = self.rejects.must_wait(stream.session, command)
        except Rejected as error:
            self._reject(stream, command, error)
            return
        if claim is not None:
            self._claim_in_turn(stream, Claim(stream.number, command, *claim))
        elif must_wait:
            self.rejects.wait(stream, command)
        else:
            self._execute(stream, command)

    def transaction(
        self, stream: ClientStream, accepts: Sequence[SettleCommand], commit: CommitCommand
    ) -> bool:
        """Execute the accepts of a transaction and its commit, which came together, as a whole.

        False: that was not possible, and nothing was done.
        """
        context = self._context
        session = context.state.sessions.get(stream.session)
        if session is None or stream.blocked_by or stream.pushed_back_from:
            return False
        commands: tuple[AnyCommand, ...] = (*accepts, commit)
        number = session.next_number
        for command in commands:
            if command.number != number:
                return False
            number += 1
        if context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
            return False
        if not commit_with_accepts(context, stream.session, accepts, commit):
            return False
        for command in commands:
            self._answer(stream, command)
        return True

    def _repeat(self, stream: ClientStream, session: Session, command: AnyCommand) -> None:
        answer = session.answers.get(command.number)
        if answer is not None:
            code = error_code(answer.code)
            answered = CommandAnswered(command.number, code, answer.message, answer.value)
        else:
            text = f"command {command.number} is over, and its answer is not kept any more"
            answered = CommandAnswered(command.number, ErrorCode.EXPIRED, text, 0)
        self._streams.answer(stream.number, answered)

    def _push_back(self, stream: ClientStream, number: int, code: ErrorCode, text: str) -> None:
        stream.pushed_back_from = number
        self._streams.tell_now(stream.number, PushedBack(*self._streams.head(), number, code, text))

    def _execute(self, stream: ClientStream, command: AnyCommand) -> None:
        ref = CommandRef(stream.session, command.number)
        try:
            execute(self._context, Request(ref, stream.session), command)
        except Rejected as error:
            self._reject(stream, command, error)
            return
        except LongPurge as long:
            self.purges.begin(stream, command.number, long.queue)
            return
        except LongCommand as long:
            self._context.alone.do(self._do(stream, command, long.work))
            return
        self._answer(stream, command)

    def _do(self, stream: ClientStream, command: AnyCommand, work: Iterator[int]) -> Iterator[int]:
        try:
            yield from work
        except Rejected as error:
            self._reject(stream, command, error)
            return
        self._answer(stream, command)

    def _answer(self, stream: ClientStream, command: AnyCommand) -> None:
        answered = answer_of(self._context, CommandRef(stream.session, command.number))
        if isinstance(command, BeginCommand):
            # A name says nothing of what is committed; the client has it before it may commit (T1).
            self._streams.answer_now(stream.number, answered)
        else:
            self._streams.answer(stream.number, answered, isinstance(command, CommitCommand))

    def _reject(self, stream: ClientStream, command: AnyCommand, error: Rejected) -> None:
        context = self._context
        context.note_refusal(error)
        ref = CommandRef(stream.session, command.number)
        transaction = getattr(command, "transaction", None)
        if transaction is not None:
            operation_failed(context, stream.session, transaction)
        state = error.details.get("state", 0)
        assert isinstance(state, int)
        context.writer.append(RejectCommand(ref, error.code, error.message, state), False)
        self._streams.answer(stream.number, answer_of(context, ref))

    # --- claims ---

    def _claim(self, stream: ClientStream, claim: Claim) -> None:
        stream.blocked_by = self._names.claim(claim)

    def _claim_in_turn(self, stream: ClientStream, claim: Claim) -> None:
        """A declaration's turn has come: its name may have been asked for, and answered, before."""
        ahead = self._ahead.take(stream, claim)
        if ahead is None:
            self._claim(stream, claim)
        elif ahead.given is None:
            stream.blocked_by = ahead.request
        else:
            self._go_on(stream, claim, ahead.given)
            self._names.release_unused(claim.kind, claim.name)

    def hold_back(self, stream: ClientStream, message: Heard) -> None:
        """Keep what came behind a command that waits, within limits; commands beyond them are pushed back."""
        if isinstance(message, Command) and stream.pushed_back_from:
            if message.number > stream.pushed_back_from:
                stream.not_taken_to = max(stream.not_taken_to, message.number)
                return
            stream.pushed_back_from = 0
        settings = self._context.settings
        size = message_bytes(message)
        is_full = (
            len(stream.backlog) >= settings.backlog_messages_max
            or stream.backlog_bytes + size > settings.command_bytes_max
        )
        if not is_full:
            if isinstance(message, CloseConsumer):
                message = CloseHeldBack(message.consumer, stream.not_taken_to)
            stream.backlog.append(message)
            stream.backlog_bytes += size
            self._ahead.ask(stream, message)
        elif isinstance(message, Command):
            stream.not_taken_to = max(stream.not_taken_to, message.number)
            text = "much waits already behind a command that needs the cluster's directory, or the store"
            self._push_back(stream, message.number, ErrorCode.UNAVAILABLE, text)
        else:
            text = "too many requests wait behind a command that needs the cluster's directory, or the store"
            self._context.note_refusal(LimitReached("backlog_messages_max", ErrorCode.UNAVAILABLE, text))
            self._streams.tell_now(stream.number, self._streams.ended(ErrorCode.UNAVAILABLE, text))
            self._streams.close(stream.number)

    def next_held_back(self, stream: ClientStream) -> Heard | None:
        """The next message that can go on; None while the stream is blocked, and when there is none."""
        if stream.blocked_by:
            return None
        self._ahead.went_on(stream)
        if not stream.backlog:
            return None
        message = stream.backlog.popleft()
        stream.backlog_bytes -= message_bytes(message)
        return message

    def claimed(self, given: NameClaimed) -> ClientStream | None:
        """etcd answered a claim; answers the stream whose backlog can go on, None if there is none."""
        claim = self._names.answered(given)
        if claim is None or self._ahead.answered(given):
            return None
        stream = self._streams.by_number.get(claim.stream)
        if stream is not None and stream.blocked_by == given.request:
            stream.blocked_by = 0
            session = self._context.state.sessions.get(stream.session)
            if session is not None and claim.command.number == session.next_number:
                self._go_on(stream, claim, given)
        else:
            stream = None
        # Nobody may want it any more: its client is gone, or its declaration was refused.
        self._names.release_unused(claim.kind, claim.name)
        return stream

    def rejected(self) -> ClientStream | None:
        """Execute what is left of a reject that waited; answers the stream whose backlog can go on, None if there is none."""
        waited = self.rejects.take()
        if waited is None:
            return None
        stream, command = waited
        session = self._context.state.sessions.get(stream.session)
        if session is not None and command.number == session.next_number:
            self._execute(stream, command)
        return stream

    def _go_on(self, stream: ClientStream, claim: Claim, given: NameClaimed) -> None:
        if given.verdict is Verdict.DONE:
            self._execute(stream, claim.command)
        elif given.verdict is Verdict.FAILED:
            text = f"{claim.kind} {claim.name!r} belongs to resource set {given.owner!r}"
            self._reject(stream, claim.command, Rejected(ErrorCode.ALREADY_EXISTS, text))
        else:
            self._claim(stream, claim)
