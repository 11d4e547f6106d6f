"""Taking messages out of a queue by records of the primary's own: eviction, expiry, rejection, dead letters.

Law: what happens to durable messages is said by a durable record and to the others by a transient one, whatever caused it: so
durable state stays a function of the durable records (DESIGN 3).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from lockstep.core.amqp.selector import Selector
from lockstep.core.content import DroppedMessage
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Dequeue, DequeueReason, Message, Move, Publish, Requeue
from services.primary.core.context import Context
from services.primary.core.read_back import Found
from services.primary.core.selecting import is_selected
from services.primary.core.targets import targets_of


def by_durability(
    queue: Queue, positions: Iterable[QueuePosition]
) -> list[tuple[bool, tuple[QueuePosition, ...]]]:
    """The positions that are there, as (durable, positions) for each kind that occurs."""
    there, marked = queue.present(positions), queue.transient_positions
    if not queue.is_durable:
        durable, transient = [], there
    elif not marked:
        durable, transient = there, []
    else:
        durable = [position for position in there if position not in marked]
        transient = [position for position in there if position in marked]
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
    """Move messages to the queue's dead-letter target, or remove them where there is none, or none that takes them.

    They leave their time to live behind (it may be what brought them there); that of the target's begins.
    """
    rooms = _rooms(context, queue)
    if _need_bodies(rooms):
        positions = _with_bodies(context, queue, positions, reason)
    for is_durable, found in by_durability(queue, positions):
        for all_targets, moving in _by_targets(queue, rooms, found):
            targets = all_targets
            if is_durable:
                targets = tuple(target for target in all_targets if target.is_durable)
                _copy(context, queue, moving, [target for target in all_targets if not target.is_durable])
            if targets:
                ids = tuple(target.id for target in targets)
                expires_ms = tuple(_expires_ms(context, target) for target in targets)
                if any(expires_ms):
                    context.expiry.expect(ids)
                context.writer.append(Move(None, 0, queue.id, moving, ids, reason, expires_ms), is_durable)
            else:
                context.writer.append(Dequeue(None, None, 0, queue.id, moving, reason), is_durable)
    for room in rooms:
        evict(context, room.queue)


def bodies_needed(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> list[MessageId]:
    """Messages whose bodies are away, and that cannot be dead letters without: not more than one command may bring."""
    if not _need_bodies(_rooms(context, queue)):
        return []
    needed: list[MessageId] = []
    left = context.settings.command_bytes_max
    ids = queue.message_ids(queue.present(positions))
    for message_id, content in zip(ids, context.state.contents.of(ids), strict=True):
        if type(content) is DroppedMessage:
            left -= content.size
            if needed and left < 0:
                break
            needed.append(message_id)
    return needed


def _with_bodies(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int
) -> list[QueuePosition]:
    """Those whose bodies are here. The others become dead letters when their bodies have been read, and go to nobody before."""
    there = queue.present(positions)
    ids = queue.message_ids(there)
    is_away = [type(content) is DroppedMessage for content in context.state.contents.of(ids)]
    away = list(compress(there, is_away))

    def again(found: Found) -> None:
        context.bodies.bring_back(found)
        if context.state.queues.by_id.get(queue.id) is queue:
            context.dispatch.end_leaving(queue.id, away)
            free = [
                position
                for position in away
                if position in queue
                and position not in queue.locks
                and not context.dispatch.is_held(queue.id, position)
            ]
            dead_letter(context, queue, free, reason)

    if away:
        context.dispatch.begin_leaving(queue.id, away)
        wanted = list(compress(ids, is_away))
        context.read_back.ask(lambda: context.read_back.select(wanted), again)
    return [position for position, is_gone in zip(there, is_away, strict=True) if not is_gone]


def _need_bodies(rooms: Sequence["_Room"]) -> bool:
    return not all(room.queue.is_durable and not room.selectors for room in rooms)


def _copy(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], targets: Sequence[Queue]
) -> None:
    """Durable messages for transient queues: by their content. A reference of a transient queue to the content that the store has
    of them would not keep it there, and on some replica the body may be away.
    """
    for target in targets:
        expires_ms = _expires_ms(context, target)
        if expires_ms:
            context.expiry.expect((target.id,))
        copies = tuple(
            Message((target.id,), message.properties, message.body, expires_ms, message.is_durable)
            for message in queue.messages(positions)
        )
        assert len(copies) == len(positions), f"{queue}: a body is away"
        context.writer.append(Publish(None, None, 0, copies), False)


class _Room:
    """What a target of dead letters takes before it is full; one that evicts takes everything."""

    def __init__(self, queue: Queue, selectors: Sequence[Selector]) -> None:
        """`selectors`: it gets only what one of them matches; none: everything."""
        definition = queue.definition
        self.queue = queue
        self.selectors = selectors
        self._is_limited = not definition.is_evicting
        self._length = definition.length_max - queue.length - queue.reserved_length
        self._bytes = definition.bytes_max - queue.bytes - queue.reserved_bytes

    def wants(self, source: Queue, position: QueuePosition) -> bool:
        """Whether a message of another queue, whose body is here if there are selectors, is for this one."""
        if not self.selectors:
            return True
        message = source.message(position)
        assert message is not None, f"{source}: a body is away"
        return any(
            is_selected(selector, message.properties, 0, message.is_durable) for selector in self.selectors
        )

    def takes(self, size: int) -> bool:
        """Take one more message of `size` bytes, if it fits."""
        definition = self.queue.definition
        if self._is_limited and (
            (definition.length_max and self._length < 1) or (definition.bytes_max and self._bytes < size)
        ):
            return False
        self._length -= 1
        self._bytes -= size
        return True


def _by_targets(
    queue: Queue, rooms: Sequence[_Room], positions: Sequence[QueuePosition]
) -> list[tuple[tuple[Queue, ...], tuple[QueuePosition, ...]]]:
    """The positions in order, in runs that go to the same targets."""
    runs: list[tuple[tuple[Queue, ...], list[QueuePosition]]] = []
    for position in positions:
        size = queue.size_of((position,))
        targets = tuple(room.queue for room in rooms if room.wants(queue, position) and room.takes(size))
        if not runs or runs[-1][0] != targets:
            runs.append((targets, []))
        runs[-1][1].append(position)
    return [(targets, tuple(found)) for targets, found in runs]


def _rooms(context: Context, queue: Queue) -> list[_Room]:
    """Where dead letters of a queue go to, in the order of their ids."""
    definition, state = queue.definition, context.state
    if definition.dead_letter_exchange is None:
        return []
    key = definition.dead_letter_key or queue.name
    found: dict[QueueId, list[Selector]] = {
        target: [] for target in state.route(definition.dead_letter_exchange, key, {})
    }
    exchange = state.exchanges.get(definition.dead_letter_exchange)
    if exchange is not None:
        targets = targets_of(context, exchange, key, {})
        for selector, queues in targets.selecting:
            for target in queues:
                if target not in targets.certain:
                    found.setdefault(target, []).append(selector)
    # A queue that dead-letters into itself would go round for ever.
    return [
        _Room(state.queues.by_id[target], found[target]) for target in sorted(found) if target != queue.id
    ]


def _expires_ms(context: Context, queue: Queue) -> int:
    ttl_ms = queue.definition.message_ttl_ms
    return context.now.wall_ms + ttl_ms if ttl_ms else 0


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
    if surplus_bytes <= 0 and not queue.locks and not context.dispatch.held_count(queue.id):
        append_dequeue(context, queue, queue.positions(limit=surplus), DequeueReason.EVICTED)
        return
    gone: list[QueuePosition] = []
    for position in _from_head(queue):
        if surplus <= 0 and surplus_bytes <= 0:
            break
        if position in queue.locks or context.dispatch.is_held(queue.id, position):
            continue
        surplus_bytes -= queue.size_of((position,))
        surplus -= 1
        gone.append(position)
    append_dequeue(context, queue, gone, DequeueReason.EVICTED)


def _from_head(queue: Queue) -> Iterator[QueuePosition]:
    """The queue's positions, without reading all of a long one: mostly the first few are asked for."""
    start, step = 0, 8
    while found := queue.positions(start, step):
        yield from found
        start, step = found[-1] + 1, 2 * step
