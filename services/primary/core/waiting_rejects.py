"""Waiting rejects: dead letters of a transient target are copies, and selectors look at what they take, so bodies may have to
be read back first (DESIGN 5).

Law: nothing of a reject is done before all of it can be done at once. Until then no record says that a message was rejected:
whoever leads next finds it in hand of its session, or free, and the command is not answered (P2, P4). Bodies are read for one
command at a time, so that what is gathered is bounded by what one command may bring.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.content import DroppedMessage
from lockstep.core.ids import MessageId, SessionKey
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.read_back import Found, Wanted
from services.primary.core.removing import bodies_needed
from services.primary.core.settling import check_held

BLOCKED = -1
"""What a stream is blocked by that waits for bodies; claims have numbers above 0."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One command, from `wait` to its turn."""

    stream: ClientStream
    command: AnyCommand
    ids: Sequence[MessageId]
    found: Found = field(default_factory=dict)


class WaitingRejects:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._waiting: deque[_Waiting] = deque()
        """In the order in which they came; bodies are read for the first."""
        self._is_reading = False

    def bodies_needed(self, session: SessionKey, command: AnyCommand) -> list[MessageId]:
        """What has to be read before this command can be executed; raises `Rejected` if it cannot be executed anyway."""
        if (
            not isinstance(command, SettleCommand)
            or command.disposition != Disposition.REJECT
            or command.transaction is not None
        ):
            return []
        context = self._context
        queue = context.queue(command.queue, session)
        check_held(context, session, command, queue)
        return bodies_needed(context, queue, command.positions)

    def wait(self, stream: ClientStream, command: AnyCommand, ids: Sequence[MessageId]) -> None:
        """Block the stream until these bodies are here."""
        stream.blocked_by = BLOCKED
        self._waiting.append(_Waiting(stream, command, ids))
        self._read_on()

    def take(self) -> tuple[ClientStream, AnyCommand] | None:
        """A command that can be executed now, with its stream, which is blocked no more; None: there is none.

        Its bodies are here until the end of the input at hand.
        """
        while self._waiting and not self._is_reading:
            first = self._waiting[0]
            is_gone = self._is_gone(first)
            if not is_gone and self._missing(first):
                self._read_on()
                return None
            self._waiting.popleft()
            self._read_on()
            if not is_gone:
                self._context.bodies.bring_back(first.found)
                first.stream.blocked_by = 0
                return first.stream, first.command
        return None

    def _read_on(self) -> None:
        if self._waiting and not self._is_reading:
            self._is_reading = True
            first = self._waiting[0]
            self._context.read_back.ask(
                lambda: self._wanted(first), lambda found: self._came(first, found), is_urgent=True
            )

    def _wanted(self, first: _Waiting) -> Wanted:
        return {} if self._is_gone(first) else self._context.read_back.select(self._missing(first))

    def _came(self, first: _Waiting, found: Found) -> None:
        self._is_reading = False
        first.found.update(found)

    def _missing(self, first: _Waiting) -> list[MessageId]:
        """Bodies that are away (again), and were not read for this command."""
        find = self._context.state.contents.find
        return [each for each in first.ids if each not in first.found and type(find(each)) is DroppedMessage]

    def _is_gone(self, waiting: _Waiting) -> bool:
        """Whether its stream is: the client asks again on another one."""
        return self._streams.by_number.get(waiting.stream.number) is not waiting.stream
