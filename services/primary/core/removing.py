"""Taking messages out of a queue by records of the primary's own: eviction, expiry, rejection, dead letters.

Law: what happens to durable messages is said by a durable record and to the others by a transient one, whatever caused it: so
durable state stays a function of the durable records (DESIGN 3).
"""

from collections.abc import Iterable, Sequence

from lockstep.core.ids import QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Dequeue, DequeueReason, Move, Requeue
from services.primary.core.context import Context


def by_durability(
    queue: Queue, positions: Iterable[QueuePosition]
) -> list[tuple[bool, tuple[QueuePosition, ...]]]:
    """The positions that are there, as (durable, positions) for each kind that occurs."""
    durable: list[QueuePosition] = []
    transient: list[QueuePosition] = []
    for position in positions:
        if position in queue.entries:
            (durable if queue.is_entry_durable(position) else transient).append(position)
    return [(kind, tuple(found)) for kind, found in ((True, durable), (False, transient)) if found]


def append_dequeue(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Remove messages outside any transaction, by records without a command."""
    for is_durable, found in by_durability(queue, positions):
        context.writer.append(Dequeue(None, None, 0, queue.id, found, reason), is_durable)


def append_requeue(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> None:
    """Count a failed delivery of messages; those that had too many go to the dead-letter target."""
    for is_durable, found in by_durability(queue, positions):
        context.writer.append(Requeue(None, queue.id, found), is_durable)


def dead_letter(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages to the queue's dead-letter target, or remove them where there is none, or none that takes them."""
    targets = _targets(context, queue)
    if not targets:
        append_dequeue(context, queue, positions, reason)
        return
    for is_durable, found in by_durability(queue, positions):
        context.writer.append(Move(None, 0, queue.id, found, targets, reason), is_durable)
    for target in targets:
        evict(context, context.state.queues.by_id[target])


def _targets(context: Context, queue: Queue) -> tuple[QueueId, ...]:
    definition = queue.definition
    if definition.dead_letter_exchange is None:
        return ()
    key = definition.dead_letter_key or queue.name
    routed = context.state.route(definition.dead_letter_exchange, key, {})
    # A queue that dead-letters into itself would go round for ever; one that is full takes no more.
    return tuple(
        target for target in routed if target != queue.id and _has_room(context.state.queues.by_id[target])
    )


def _has_room(queue: Queue) -> bool:
    definition = queue.definition
    if definition.is_evicting:
        return True
    return not (
        (definition.length_max and queue.length + queue.reserved_length >= definition.length_max)
        or (definition.bytes_max and queue.bytes + queue.reserved_bytes >= definition.bytes_max)
    )


def is_worn_out(queue: Queue, position: QueuePosition) -> bool:
    """Whether a message failed as often as its queue allows."""
    limit = queue.definition.delivery_count_max
    return bool(limit) and queue.delivery_count(position) >= limit


def evict(context: Context, queue: Queue) -> None:
    """Remove the oldest messages that nobody has while the queue is over its limits."""
    definition = queue.definition
    if not definition.is_evicting:
        return
    surplus = queue.length - definition.length_max if definition.length_max else 0
    surplus_bytes = queue.bytes - definition.bytes_max if definition.bytes_max else 0
    if surplus <= 0 and surplus_bytes <= 0:
        return
    gone: list[QueuePosition] = []
    for position in queue.positions():
        if surplus <= 0 and surplus_bytes <= 0:
            break
        if position in queue.locks or context.dispatch.is_held(queue.id, position):
            continue
        message = queue.message(position)
        if message is not None:
            surplus_bytes -= len(message.body) + len(message.properties)
        surplus -= 1
        gone.append(position)
    append_dequeue(context, queue, gone, DequeueReason.EVICTED)
