"""Taking messages out of a queue by records of the primary's own: eviction, expiry, rejection, dead letters.

Law: what happens to durable messages is said by a durable record and to the others by a transient one, whatever caused it: so
durable state stays a function of the durable records (DESIGN 3). Much is done in parts, which may be in frames of their own: each
is complete by itself, and a successor that has some of them finds every message either moved, or where it was.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice

from lockstep.core.amqp.sections import with_deaths
from lockstep.core.amqp.selector import Selector
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX
from lockstep.core.apply_messages import deaths_of
from lockstep.core.content import DroppedMessage, size_of
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import (
    Annotate,
    DeclareQueue,
    Dequeue,
    DequeueReason,
    Message,
    Move,
    Publish,
    Requeue,
)
from lockstep.core.routing import Targets
from services.primary.core.context import Context
from services.primary.core.read_back import Found
from services.primary.core.selecting import (
    DEAD_LETTER_STEPS_MAX,
    DEAD_LETTERS_COSTLY_MAX,
    Selectors,
    look,
)

SELECTED_IN_ONE = 100
"""Questions to selectors of bindings, in one go: some milliseconds, if they are long ones."""
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


def dead_letter(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages to the queue's dead-letter target, as `dead_letter_part` does, between two commands: in as many parts as it
    takes. Those whose bodies are needed and away follow when these have been read.
    """
    if _need_bodies(_rooms(context, queue, reason)):
        positions = _with_bodies(context, queue, positions, reason)
    there, first = queue.present(positions), 0
    while first < len(there):
        ahead = there[first : first + context.settings.command_messages_max]
        part = next_part(context, queue, ahead, reason, context.settings.frame_bytes_max)
        dead_letter_part(context, queue, part, reason)
        end_part(context)
        first += len(part)


def selected_in_one(context: Context, queue: Queue, reason: int) -> int:
    """How many dead letters of a queue selectors are asked about in one go, before others have their turn."""
    selectors = sum(len(room.chosen_by) for room in _rooms(context, queue, reason))
    return max(1, SELECTED_IN_ONE // selectors) if selectors else context.settings.command_messages_max


def next_part(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int, bytes_max: int
) -> Sequence[QueuePosition]:
    """The first of these positions, which are there: as many as bring at most `bytes_max` of content into the log, or into memory
    to be looked at, when they become dead letters; one at least.
    """
    rooms = _rooms(context, queue, reason)
    if not _need_bodies(rooms):
        return positions
    times = max(1, len({_ttl_ms(room.queue) for room in rooms if not room.queue.is_durable}))
    size = 0
    for count, content in enumerate(context.state.contents.of(queue.message_ids(positions))):
        size += times * size_of(content)
        if count and size > bytes_max:
            return positions[:count]
    return positions


def dead_letter_part(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages to the queue's dead-letter target, or remove them where there is none, or none that takes them. Bodies that
    are needed are here.

    They leave their time to live behind (it may be what brought them there); that of the target's begins.
    """
    rooms = _rooms(context, queue, reason)
    for is_durable, found in by_durability(queue, positions):
        for all_targets, moving in _by_targets(context, queue, rooms, found, is_durable):
            targets = all_targets
            if not targets and dead_letter_exchange(queue.definition) is not None:
                context.figures.dead_letters_lost += len(moving)
            if is_durable:
                targets = tuple(target for target in all_targets if target.is_durable)
                _copy(
                    context,
                    queue,
                    moving,
                    [target for target in all_targets if not target.is_durable],
                    reason,
                )
            if targets:
                ids = tuple(target.id for target in targets)
                expires_ms = tuple(_expires_ms(context, target) for target in targets)
                if any(expires_ms):
                    context.expiry.expect(ids)
                context.writer.append(
                    Move(None, 0, queue.id, moving, ids, reason, expires_ms, context.now.wall_ms), is_durable
                )
            else:
                context.writer.append(Dequeue(None, None, 0, queue.id, moving, reason), is_durable)
    for room in rooms:
        evict(context, room.queue)


def bodies_away(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> list[MessageId]:
    """Those of these messages, which are there, that cannot be rejected before their bodies have been read."""
    if not _need_bodies(_rooms(context, queue, DequeueReason.REJECTED)):
        return []
    ids = queue.message_ids(positions)
    contents = context.state.contents.of(ids)
    return [each for each, content in zip(ids, contents, strict=True) if isinstance(content, DroppedMessage)]


def _with_bodies(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int
) -> list[QueuePosition]:
    """Those whose bodies are here. The others become dead letters when their bodies have been read, and go to nobody before."""
    there = queue.present(positions)
    ids = queue.message_ids(there)
    is_away = [isinstance(content, DroppedMessage) for content in context.state.contents.of(ids)]
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
    return not all(room.queue.is_durable and not room.chosen_by for room in rooms)


def _copy(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], targets: Sequence[Queue], reason: int
) -> None:
    """Durable messages for transient queues: by their content, which says why they are dead letters. A reference of a transient
    queue to the content that the store has of them would not keep it there, and on some replica the body may be away.
    """
    by_ttl: dict[int, list[QueueId]] = {}
    for target in targets:
        by_ttl.setdefault(_ttl_ms(target), []).append(target.id)
    messages = queue.messages(positions) if targets else []
    assert not targets or len(messages) == len(positions), f"{queue}: a body is away"
    said = [
        with_deaths(
            message.properties,
            deaths_of(queue, position, reason, context.now.wall_ms),
            queue.annotations.get(position, b""),
        )
        for position, message in zip(positions, messages, strict=False)
    ]
    for ttl_ms, found in by_ttl.items():
        ids, expires_ms = tuple(found), context.now.wall_ms + ttl_ms if ttl_ms else 0
        if expires_ms:
            context.expiry.expect(ids)
        copies = tuple(
            Message(ids, properties, message.body, expires_ms, message.is_durable, message.priority)
            for properties, message in zip(said, messages, strict=True)
        )
        context.writer.append(Publish(None, None, 0, copies), False)


class _Room:
    """What a target of dead letters takes before it is full; one that evicts takes everything."""

    def __init__(
        self, queue: Queue, chosen_by: Sequence[Selector], selectors: Selectors, is_limited: bool
    ) -> None:
        """`chosen_by`: it gets only what one of these matches; none: everything. `is_limited`: more may be too much for it."""
        definition = queue.definition
        self.queue = queue
        self.chosen_by = chosen_by
        self._selectors = selectors
        self._costly = 0
        """Messages that took more than a selector may."""
        self._is_limited = is_limited and not definition.is_evicting
        self._length = definition.length_max - queue.length - queue.reserved_length
        self._bytes = definition.bytes_max - queue.bytes - queue.reserved_bytes

    def wants(self, source: Queue, position: QueuePosition) -> bool:
        """Whether a message of another queue, whose body is here if there are selectors, is for this one."""
        if not self.chosen_by:
            return True
        message = source.message(position)
        assert message is not None, f"{source}: a body is away"
        for selector in self.chosen_by:
            is_careful = self._costly >= DEAD_LETTERS_COSTLY_MAX
            steps_max = DEAD_LETTER_STEPS_MAX if is_careful else EVALUATION_STEPS_MAX
            found = look(selector, message.properties, 0, message.is_durable, steps_max)
            self._costly += found.is_too_costly
            self._selectors.pay(found.steps)
            self._selectors.too_costly += found.is_too_costly
            if found.is_selected:
                return True
        return False

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
    context: Context,
    queue: Queue,
    rooms: Sequence[_Room],
    positions: Sequence[QueuePosition],
    is_durable: bool,
) -> list[tuple[tuple[Queue, ...], tuple[QueuePosition, ...]]]:
    """The positions, all of which are durable or none is, in order, in runs that go to the same targets.

    Copies of one message are not more than a command may bring: transient targets whose time to live is another one than those
    of the first then go without, as full ones do.
    """
    bytes_max = context.settings.command_bytes_max
    runs: list[tuple[tuple[Queue, ...], list[QueuePosition]]] = []
    for position in positions:
        size = queue.size_of((position,))
        targets: list[Queue] = []
        copied: set[int] = set()
        for room in rooms:
            ttls = copied if room.queue.is_durable or not is_durable else copied | {_ttl_ms(room.queue)}
            fits = len(ttls) <= 1 or len(ttls) * size <= bytes_max
            if fits and room.wants(queue, position) and room.takes(size):
                targets.append(room.queue)
                copied = ttls
        if not runs or runs[-1][0] != tuple(targets):
            runs.append((tuple(targets), []))
        runs[-1][1].append(position)
    return [(targets, tuple(found)) for targets, found in runs]


def dead_letter_exchange(definition: DeclareQueue) -> str | None:
    """Where dead letters of a queue go to; "": the default exchange, which a routing key alone means, too. None: nowhere."""
    if definition.dead_letter_exchange is None and definition.dead_letter_key:
        return ""
    return definition.dead_letter_exchange


def _rooms(context: Context, queue: Queue, reason: int) -> list[_Room]:
    """Where dead letters of a queue go to, in the order of their ids.

    What expires does not go to the queue that it is in: it would go round for ever, and nobody would ever have asked for that.
    """
    definition, state = queue.definition, context.state
    name = dead_letter_exchange(definition)
    if name is None:
        return []
    key = definition.dead_letter_key or queue.name
    exchange = state.exchanges.get(name)
    targets = (
        exchange.matcher.targets(key, {}) if exchange is not None else Targets(state.route(name, key, {}))
    )
    found: dict[QueueId, list[Selector]] = {target: [] for target in targets.certain}
    certain = set(targets.certain)
    for text, queues in targets.selecting:
        selector = context.selectors.of(text, None)
        if selector is not None:
            for target in queues:
                if target not in certain:
                    found.setdefault(target, []).append(selector)
    if reason == DequeueReason.EXPIRED:
        found.pop(queue.id, None)
    # What goes to the end of its own queue takes no room there that it did not have.
    return [
        _Room(state.queues.by_id[target], found[target], context.selectors, target != queue.id)
        for target in sorted(found)
    ]


def _ttl_ms(queue: Queue) -> int:
    return queue.definition.message_ttl_ms


def _expires_ms(context: Context, queue: Queue) -> int:
    ttl_ms = _ttl_ms(queue)
    return context.now.wall_ms + ttl_ms if ttl_ms else 0


def evict(context: Context, queue: Queue) -> None:
    """Remove the oldest messages that nobody has while the queue is over its limits."""
    if not queue.definition.is_evicting:
        return
    surplus, surplus_bytes = _surplus(queue)
    if surplus <= 0 and surplus_bytes <= 0:
        return
    if surplus_bytes <= 0 and not queue.locks and not context.dispatch.held_count(queue.id):
        append_dequeue(context, queue, queue.positions(limit=surplus), DequeueReason.EVICTED)
        return
    for _ in evict_in_steps(context, queue):
        pass


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
