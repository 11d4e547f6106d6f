"""Purging: every message of a queue that nobody has goes. Of a long queue they go in parts, between which others have their
turn: the loop of every replica is held by one part and no longer, and the lease is renewed (R6).

Law: what goes was there when it was asked for; what comes meanwhile stays. A purge is answered by the record behind its last
part, and a part is harmless alone: a command that comes again, to whoever leads then, takes what is there then.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.core.commands import PurgeQueueCommand
from lockstep.core.effects import WakeAt
from lockstep.core.ids import QueuePosition, place
from lockstep.core.queues import Queue
from lockstep.core.records import AcceptCommand, CommandRef, DequeueReason
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context, Request, answer_of
from services.primary.core.removing import append_dequeue, end_part
from services.primary.core.waiting_rejects import BLOCKED

PURGED_IN_ONE = 500
"""Messages that leave in one step, for some microseconds each if they have priorities. All that commands which come together
purge is no more than what one step moves (`WaitingLetters.left`)."""


class LongPurge(Exception):
    """The queue holds more than is removed in one step, or in what is left of it: nothing was done yet."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.name)
        self.queue = queue


def purge_queue(context: Context, request: Request, command: PurgeQueueCommand) -> None:
    """In one go; raises `LongPurge` if that is too much for one."""
    queue = context.queue(command.name, request.session)
    if queue.length > min(_most(context), context.letters.left(context.now)):
        raise LongPurge(queue)
    count = _remove(context, queue, queue.positions())
    context.writer.append(AcceptCommand(request.ref, count), False)


def _most(context: Context) -> int:
    """Messages that one step removes."""
    return min(PURGED_IN_ONE, context.settings.command_messages_max)


def _remove(context: Context, queue: Queue, positions: Iterable[QueuePosition]) -> int:
    """Remove those that nobody has; answers how many."""
    free = [
        position
        for position in positions
        if position not in queue.locks and not context.dispatch.is_held(queue.id, position)
    ]
    context.letters.pay(len(free))
    append_dequeue(context, queue, free, DequeueReason.PURGED)
    return len(free)


@dataclass(slots=True, eq=False)
class _Purge:
    """One command, from `begin` to its answer."""

    stream: ClientStream
    ref: CommandRef
    queue: Queue
    end: QueuePosition
    """What is there from here on came later."""
    start: QueuePosition
    """Everything before is done."""
    count: int = 0


class LongPurges:
    """Lives as long as the epoch; driven by the primary core, for one part at a time."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._waiting: deque[_Purge] = deque()
        """In the order in which they came; the first is under way."""

    @property
    def are_waiting(self) -> bool:
        """Whether there is more to do."""
        return bool(self._waiting)

    def begin(self, stream: ClientStream, number: int, queue: Queue) -> None:
        """Block the stream until its command of this number, a purge, is done."""
        stream.blocked_by = BLOCKED
        end = QueuePosition(place(self._context.writer.log.end + 1, 0))
        self._waiting.append(_Purge(stream, CommandRef(stream.session, number), queue, end, QueuePosition(0)))
        context = self._context
        context.effects.append(WakeAt(context.state.set_name, context.now.boottime_ms + 1))

    def go_on(self) -> ClientStream | None:
        """Do one part. Answers a stream that is blocked no more, because its purge was answered; None: there is none."""
        while self._waiting and self._is_gone(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            return None
        context, purge = self._context, self._waiting[0]
        # A queue that was deleted meanwhile holds nothing any more.
        is_there = context.state.queues.by_id.get(purge.queue.id) is purge.queue
        count_max = _most(context)
        found = purge.queue.positions(purge.start, count_max + 1) if is_there else []
        left = found[: bisect_left(found, purge.end)]
        purge.count += _remove(context, purge.queue, left[:count_max])
        if len(left) > count_max:
            purge.start = left[count_max]
            end_part(context)
            return None
        self._waiting.popleft()
        purge.stream.blocked_by = 0
        context.writer.append(AcceptCommand(purge.ref, purge.count), False)
        self._streams.answer(purge.stream.number, answer_of(context, purge.ref))
        return purge.stream

    def _is_gone(self, purge: _Purge) -> bool:
        """Whether its stream is: the client asks again on another one."""
        return self._streams.by_number.get(purge.stream.number) is not purge.stream
