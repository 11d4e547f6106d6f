"""Waiting rejects: dead letters of a transient target are copies, and selectors look at what they take, so bodies may have to
be read back first (DESIGN 5), and a frame carries no more of them than one command may bring. So much is done in parts.

Law: a reject is answered by the record behind its last part, and never before: whoever leads next finds all that was answered in
the log (P2, P4). Until a part can be done at once no record says that one of its messages was rejected: each is then in hand of
its session, or free. A part is harmless alone: a command that comes again takes what is left (`settling.py`). Bodies are read for
one part at a time, so that what is gathered is bounded by what one command may bring.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.errors import Rejected
from lockstep.core.ids import MessageId, QueuePosition, SessionKey
from lockstep.core.queues import Queue
from lockstep.core.records import DequeueReason
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.read_back import Found, Wanted
from services.primary.core.removing import bodies_away, dead_letter_part, end_part, next_part
from services.primary.core.settling import check_held, named

BLOCKED = -1
"""What a stream is blocked by that waits for its reject, or a long purge; claims have numbers above 0."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One command, from `wait` to its turn."""

    stream: ClientStream
    command: SettleCommand
    found: Found = field(default_factory=dict)
    """Bodies of the next part."""


@dataclass(slots=True)
class Part:
    """What is done next of a reject."""

    queue: Queue
    positions: Sequence[QueuePosition]
    is_last: bool


class WaitingRejects:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._waiting: deque[_Waiting] = deque()
        """In the order in which they came; the first is under way."""
        self._is_reading = False

    def must_wait(self, session: SessionKey, command: AnyCommand) -> bool:
        """Whether this is a reject that is done in parts, or needs bodies; raises `Rejected` if it cannot be executed anyway."""
        if (
            not isinstance(command, SettleCommand)
            or command.disposition != Disposition.REJECT
            or command.transaction is not None
        ):
            return False
        part = self.part(session, command)
        return not part.is_last or bool(bodies_away(self._context, part.queue, part.positions))

    def wait(self, stream: ClientStream, command: AnyCommand) -> None:
        """Block the stream until this one, which must, has been done up to its last part."""
        assert isinstance(command, SettleCommand), command
        stream.blocked_by = BLOCKED
        self._waiting.append(_Waiting(stream, command))

    def take(self) -> tuple[ClientStream, AnyCommand] | None:
        """Go on with what waits. Answers a command that can be executed now, with its stream, which is blocked no more; None:
        there is none.

        What is left of it are the messages of its last part, whose bodies are here until the end of the input at hand.
        """
        context = self._context
        while self._waiting and not self._is_reading:
            first = self._waiting[0]
            if self._is_gone(first):
                self._waiting.popleft()
                continue
            if context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
                return None
            part = self._next(first)
            if part is not None and self._missing(first, part):
                self._read()
                return None
            context.bodies.bring_back(first.found)
            if part is None or part.is_last:
                self._waiting.popleft()
                first.stream.blocked_by = 0
                return first.stream, first.command
            first.found = {}
            context.dispatch.let_go(first.stream.session, part.queue.id, part.positions)
            dead_letter_part(context, part.queue, part.positions, DequeueReason.REJECTED)
            end_part(context)
        return None

    def part(self, session: SessionKey, command: SettleCommand) -> Part:
        """The next part of it; raises `Rejected` if it cannot be executed."""
        context = self._context
        queue = context.queue(command.queue, session)
        check_held(context, session, command, queue)
        left = named(command, queue)
        positions = next_part(
            context, queue, left, DequeueReason.REJECTED, context.settings.command_bytes_max
        )
        return Part(queue, positions, len(positions) == len(left))

    def _next(self, waiting: _Waiting) -> Part | None:
        """The next part; None: there is none any more, which is found again by whoever executes the command."""
        try:
            return self.part(waiting.stream.session, waiting.command)
        except Rejected:
            return None

    def _read(self) -> None:
        """Read what the first one needs next."""
        first = self._waiting[0]
        self._is_reading = True
        self._context.read_back.ask(
            lambda: self._wanted(first), lambda found: self._came(first, found), is_urgent=True
        )

    def _wanted(self, first: _Waiting) -> Wanted:
        part = None if self._is_gone(first) else self._next(first)
        return self._context.read_back.select(self._missing(first, part)) if part is not None else {}

    def _came(self, first: _Waiting, found: Found) -> None:
        self._is_reading = False
        first.found.update(found)

    def _missing(self, first: _Waiting, part: Part) -> list[MessageId]:
        """Bodies of the part that are away (again), and were not read for it."""
        return [
            each for each in bodies_away(self._context, part.queue, part.positions) if each not in first.found
        ]

    def _is_gone(self, waiting: _Waiting) -> bool:
        """Whether its stream is: the client asks again on another one."""
        return self._streams.by_number.get(waiting.stream.number) is not waiting.stream
