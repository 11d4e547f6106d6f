"""Waiting rejects: dead letters of a transient target are copies, and selectors look at what they take, so bodies may have to
be read back first (DESIGN 5), and a frame carries no more of them than one command may bring. They may go to very many queues. So
much is done in parts.

Law: a reject is answered by the record behind its last part, and never before: whoever leads next finds all that was answered in
the log (P2, P4). One that `may_be_partial` is answered behind its first part, for what that did: what others say on its stream
waits for one part, and goes on before the next. (A queue that ends with its last consumer takes the rest along, so who says this
closes that consumer behind the last part.)
Until a part can be done at once no record says that one of its messages was rejected: each is then in hand of its session, or
free. A part is harmless alone: a command that comes again takes what is left (`settling.py`). Bodies are read for one part at a
time, so that what is gathered is bounded by what one command may bring.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.errors import Rejected
from lockstep.core.ids import MessageId, QueuePosition, SessionKey
from lockstep.core.queues import Queue
from lockstep.core.records import DequeueReason
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.dead_letter_parts import bodies_away, move_part, part_of
from services.primary.core.dead_letter_routes import Routes, find_routes
from services.primary.core.dead_letters import are_few, ask_for_turn, may_move
from services.primary.core.read_back import Found
from services.primary.core.removing import end_part
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
    queue: Queue | None = None
    """None: its turn has not come."""
    left: Sequence[QueuePosition] = ()
    """What is not done of it, from then on: its session holds that, so it stays in the queue as long as there is one."""
    is_done: bool = False
    """Nothing is left of it but its answer."""


class WaitingRejects:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._waiting: deque[_Waiting] = deque()
        """In the order of their turns, of one part each; the first is under way."""
        self._is_reading = False

    @property
    def are_ready(self) -> bool:
        """Whether one can go on, and none waits for its bodies."""
        return bool(self._waiting) and not self._is_reading

    def must_wait(self, session: SessionKey, command: AnyCommand) -> bool:
        """Whether this is a reject that is done in parts, or needs bodies; raises `Rejected` if it cannot be executed anyway."""
        if (
            not isinstance(command, SettleCommand)
            or command.disposition != Disposition.REJECT
            or command.transaction is not None
        ):
            return False
        queue, left = self._left(session, command)
        bytes_max = self._context.settings.command_bytes_max
        return bool(left) and not are_few(self._context, queue, left, DequeueReason.REJECTED, bytes_max)

    def wait(self, stream: ClientStream, command: AnyCommand) -> None:
        """Block the stream until this one, which must, has been done but for its answer."""
        assert isinstance(command, SettleCommand), command
        stream.blocked_by = BLOCKED
        self._waiting.append(_Waiting(stream, command))

    def take(self) -> tuple[ClientStream, AnyCommand] | None:
        """Go on with what waits, in turns with other dead letters. Answers a command that can be executed now, with its stream,
        which is blocked no more: there is nothing left of it. None: there is none.
        """
        while self._waiting and not (self._is_reading or self._context.alone.works):
            first, letters = self._waiting[0], self._context.letters
            if self._is_gone(first):
                self._waiting.popleft()
            elif first.is_done:
                self._waiting.popleft()
                first.stream.blocked_by = 0
                return first.stream, first.command
            elif letters.ready and letters.are_before_rejects:
                return None
            elif may_move(self._context):
                letters.are_before_rejects = bool(letters.ready)
                self._context.alone.do(self._do_part(first))
            else:
                return None
        return None

    def _do_part(self, first: _Waiting) -> Iterator[int]:
        """The next part of one, or what has to be read for it, in steps that say what they cost."""
        context, session = self._context, first.stream.session
        if first.queue is None:
            try:
                first.queue, first.left = self._left(session, first.command)
            except Rejected:
                first.is_done = True  # It is found again by whoever executes the command.
                return
        queue, left = first.queue, first.left
        if context.state.queues.by_id.get(queue.id) is not queue:
            first.is_done = True
            return
        routes = yield from find_routes(context, queue, DequeueReason.REJECTED)
        part = self.part(queue, left, routes)
        away = [each for each in bodies_away(context, queue, part, routes) if each not in first.found]
        if away:
            self._read(first, away)
            return
        context.bodies.bring_back(first.found)
        first.found = {}
        is_last = self.is_last(left, part)
        first.left = left[len(part) :]
        context.dispatch.let_go(session, queue.id, part)
        context.letters.pay(len(part) * routes.cost)
        yield from move_part(context, queue, part, routes, DequeueReason.REJECTED)
        first.is_done = is_last
        if is_last:
            return
        if first.command.may_be_partial:
            positions = first.command.positions
            done = positions[: positions.index(first.left[0])]
            first.command = replace(first.command, positions=done)
            first.is_done = True
            return
        end_part(context)
        self._waiting.rotate(-1)

    def part(self, queue: Queue, left: Sequence[QueuePosition], routes: Routes) -> Sequence[QueuePosition]:
        """What is done next of a reject of which so much is left."""
        return part_of(self._context, queue, left, routes)

    def is_last(self, left: Sequence[QueuePosition], part: Sequence[QueuePosition]) -> bool:
        """Whether nothing is left behind this part."""
        return len(part) == len(left)

    def _left(self, session: SessionKey, command: SettleCommand) -> tuple[Queue, Sequence[QueuePosition]]:
        """What is there of it; raises `Rejected` if it cannot be executed."""
        queue = self._context.queue(command.queue, session)
        check_held(self._context, session, command, queue)
        return queue, named(command, queue)

    def _read(self, first: _Waiting, away: Sequence[MessageId]) -> None:
        """Read what the first one needs next."""
        self._is_reading = True
        read_back = self._context.read_back
        read_back.ask(
            lambda: read_back.select(away) if not self._is_gone(first) else {},
            lambda found: self._came(first, found),
            is_urgent=True,
        )

    def _came(self, first: _Waiting, found: Found) -> None:
        self._is_reading = False
        first.found.update(found)
        ask_for_turn(self._context)

    def _is_gone(self, waiting: _Waiting) -> bool:
        """Whether its stream is: the client asks again on another one."""
        return self._streams.by_number.get(waiting.stream.number) is not waiting.stream
