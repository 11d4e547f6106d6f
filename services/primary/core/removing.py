"""Taking messages out of a queue, or counting their deliveries, by records of the primary's own.

Law: what happens to durable messages is said by a durable record and to the others by a transient one, whatever caused it: so
durable state stays a function of the durable records (DESIGN 3). Much is done in parts, which may be in frames of their own: each
is complete by itself, and a successor that has some of them finds every message either moved, or where it was.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import (
    Annotate,
    Dequeue,
    DequeueReason,
    Requeue,
)
from services.primary.core.context import Context

EVICTED_AT_ONCE = 2000
"""Messages that go in the step in which others have come: more go behind it, with nothing between."""
EVICTED_IN_ONE = 500
"""Messages that are looked at in one step whether they are to go."""
_EVICTION_COST = 2
PARTS_OF_A_FRAME = 4
"""What is done in parts mostly names positions: of as many bytes they take longer to be encoded and applied than contents."""


def by_durability(
    queue: Queue, positions: Iterable[QueuePosition]
) -> list[tuple[bool, tuple[QueuePosition, ...]]]:
    """The positions that are there, as (durable, positions) for each kind that occurs."""
    there, marked = queue.present(positions), queue.transient_positions
    if not queue.is_durable:
        durable, transient = [], there
    elif not marked.pages:
        durable, transient = there, []
    else:
        durable = [position for position in there if position not in marked]
        transient = [position for position in there if position in marked]
    return [(kind, tuple(found)) for kind, found in ((True, durable), (False, transient)) if found]


def append_dequeue(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Remove messages outside any transaction, by records without a command: in parts, if they are more than a command names."""
    for part in _slices(context, positions):
        for is_durable, found in by_durability(queue, part):
            context.writer.append(Dequeue(None, None, 0, queue.id, found, reason), is_durable)


def append_requeue(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> None:
    """Count a failed delivery of messages, in such parts, the first of which is one, too: many sessions may end together. Those
    that had too many go to the dead-letter target.
    """
    end_part(context)
    for part in _slices(context, positions):
        append_requeue_part(context, queue, part)


def append_requeue_part(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> None:
    """The same of no more than a command names, in the frame that it is in."""
    for is_durable, found in by_durability(queue, positions):
        context.writer.append(Requeue(None, queue.id, found), is_durable)


def append_annotations(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], annotations: bytes
) -> None:
    """Whoever gives messages back says something of them."""
    for is_durable, found in by_durability(queue, positions):
        context.writer.append(Annotate(None, queue.id, found, annotations), is_durable)


def _slices(context: Context, positions: Sequence[QueuePosition]) -> Iterator[Sequence[QueuePosition]]:
    """The positions in parts, between which frames may end: of a command's own, one."""
    count = context.settings.command_messages_max
    for first in range(0, len(positions), count):
        if first:
            end_part(context)
        yield positions[first : first + count]


def end_part(context: Context) -> None:
    """What was appended is complete by itself: if it fills a frame, that ends here."""
    context.writer.log.end_command(max(1, context.settings.frame_bytes_max // PARTS_OF_A_FRAME))


def evict(context: Context, queue: Queue) -> None:
    """Remove the oldest messages that nobody has while the queue is over its limits: what is more than a step, alone."""
    if not queue.definition.is_evicting:
        return
    surplus, surplus_bytes = _surplus(queue)
    if surplus <= 0 and surplus_bytes <= 0:
        return
    is_little = surplus_bytes <= 0 and surplus <= EVICTED_AT_ONCE
    if is_little and not queue.locks and not context.dispatch.held_count(queue.id):
        append_dequeue(context, queue, queue.positions(limit=surplus), DequeueReason.EVICTED)
        return
    context.alone.do(evict_in_steps(context, queue))


def evict_in_steps(context: Context, queue: Queue) -> Iterator[int]:
    """The same in steps that say what they cost, where nothing comes between."""
    yield 1
    if not queue.definition.is_evicting:
        return
    surplus, surplus_bytes = _surplus(queue)
    from_head = _from_head(queue)
    while surplus > 0 or surplus_bytes > 0:
        gone: list[QueuePosition] = []
        looked_at = 0
        for position in islice(from_head, EVICTED_IN_ONE):
            looked_at += 1
            if position in queue.locks or context.dispatch.is_held(queue.id, position):
                continue
            surplus_bytes -= queue.size_of((position,)) if surplus_bytes > 0 else 0
            surplus -= 1
            gone.append(position)
            if surplus <= 0 and surplus_bytes <= 0:
                break
        append_dequeue(context, queue, gone, DequeueReason.EVICTED)
        if not looked_at:
            return  # Somebody has all that is left.
        yield looked_at + _EVICTION_COST * len(gone)
        end_part(context)


def _surplus(queue: Queue) -> tuple[int, int]:
    """Messages, and bytes, beyond the limits."""
    definition = queue.definition
    surplus = queue.length - definition.length_max if definition.length_max else 0
    return surplus, queue.bytes - definition.bytes_max if definition.bytes_max else 0


def _from_head(queue: Queue) -> Iterator[QueuePosition]:
    """The queue's positions, without reading all of a long one: mostly the first few are asked for."""
    start, step = 0, 8
    while found := queue.positions(start, step):
        yield from found
        start, step = found[-1] + 1, min(2 * step, EVICTED_IN_ONE)
