"""Parts of dead letters: what of them is moved in one part, and how.

Law: a part is moved in steps between which nothing comes; messages count by the queues that they may go to. Durable messages get
to transient queues as copies.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.amqp.sections import with_deaths
from lockstep.core.apply_messages import MOVED_AS_TARGETS, deaths_of
from lockstep.core.content import DroppedMessage, size_of
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Dequeue, Message, Move, Publish
from services.primary.core.context import Context, shown
from services.primary.core.dead_letter_routes import Routes, dead_letter_exchange, note_steps
from services.primary.core.dead_letter_targets import Asked, by_targets, rooms_of
from services.primary.core.removing import by_durability, evict_in_steps
from services.primary.core.selecting import QUEUES_MANY, STEPS_PER_QUEUE


def part_of(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], routes: Routes
) -> Sequence[QueuePosition]:
    """The first of these positions, which are there: as many as one command may bring in one part; one at least."""
    some = positions[: routes.part_max]
    return some[: fitting(context, queue, some, routes, context.settings.command_bytes_max)]


def fitting(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], routes: Routes, bytes_max: int
) -> int:
    """How many of these, which are there, bring at most so much content into the log, or into memory to be looked at; one at
    least, if there is one.
    """
    if not routes.need_bodies:
        return len(positions)
    ttls = {target.definition.message_ttl_ms for target in routes.targets if not target.is_durable}
    times = max(1, len(ttls))
    size = 0
    for count, content in enumerate(context.state.contents.of(queue.message_ids(positions))):
        size += times * size_of(content)
        if count and size > bytes_max:
            return count
    return len(positions)


def bodies_away(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], routes: Routes
) -> list[MessageId]:
    """Those of these messages, which are there, whose bodies are needed and have to be read before."""
    if not routes.need_bodies:
        return []
    ids = queue.message_ids(positions)
    contents = context.state.contents.of(ids)
    return [each for each, content in zip(ids, contents, strict=True) if isinstance(content, DroppedMessage)]


def move_part(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], routes: Routes, reason: int
) -> Iterator[int]:
    """Move messages, which are there, to those of the queues that take them, or remove them where none does; in steps that say
    what they cost, with nothing between. Bodies that are needed are here.

    They leave their time to live behind (it may be what brought them there); that of the target's begins.
    """
    if len(routes.targets) >= QUEUES_MANY:
        context.selectors.pay(len(positions) * len(routes.targets) * STEPS_PER_QUEUE)
    rooms = yield from rooms_of(queue, routes)
    asked = Asked(context)
    for is_durable, found in by_durability(queue, positions):
        runs = yield from by_targets(context, queue, rooms, asked, found, is_durable)
        for all_targets, moving in runs:
            targets = all_targets
            if not targets and dead_letter_exchange(queue.definition) is not None:
                context.figures.dead_letters_lost += len(moving)
                if routes.is_given_up:
                    _note_given_up(context, queue, len(moving))
            if is_durable:
                targets = [target for target in all_targets if target.is_durable]
                if len(targets) < len(all_targets):
                    transient = [target for target in all_targets if not target.is_durable]
                    yield from _copy(context, queue, moving, transient, reason)
            if targets:
                ids = tuple([target.id for target in targets])
                ttls_ms = [target.definition.message_ttl_ms for target in targets]
                wall_ms = context.now.wall_ms
                expires_ms = tuple([wall_ms + ttl_ms if ttl_ms else 0 for ttl_ms in ttls_ms])
                if any(ttls_ms):
                    context.expiry.expect(ids)
                yield len(ids) // 2
                record = Move(None, 0, queue.id, moving, ids, reason, expires_ms, wall_ms)
                context.writer.append(record, is_durable)
                yield from context.state.finish_in_steps()
            else:
                context.writer.append(Dequeue(None, None, 0, queue.id, moving, reason), is_durable)
            yield len(moving) * MOVED_AS_TARGETS + len(all_targets)
    for room in rooms:
        if room.queue.definition.is_evicting:
            yield from evict_in_steps(context, room.queue)


def _note_given_up(context: Context, queue: Queue, count: int) -> None:
    """Some messages are gone, since nobody knows where they belong."""
    note_steps(context, f"{count} dead letters of queue {shown(queue.name)} go nowhere")


def _copy(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], targets: Sequence[Queue], reason: int
) -> Iterator[int]:
    """Durable messages for transient queues: by their content, which says why they are dead letters. A reference of a transient
    queue to the content that the store has of them would not keep it there, and on some replica the body may be away.
    """
    by_ttl: dict[int, list[QueueId]] = {}
    for target in targets:
        by_ttl.setdefault(target.definition.message_ttl_ms, []).append(target.id)
    messages = queue.messages(positions)
    assert len(messages) == len(positions), f"{queue}: a body is away"
    said = [
        with_deaths(
            message.properties,
            deaths_of(queue, position, reason, context.now.wall_ms),
            queue.annotations.get(position, b""),
        )
        for position, message in zip(positions, messages, strict=True)
    ]
    yield len(targets) + MOVED_AS_TARGETS * len(said)
    for ttl_ms, found in by_ttl.items():
        ids, expires_ms = tuple(found), context.now.wall_ms + ttl_ms if ttl_ms else 0
        if expires_ms:
            context.expiry.expect(ids)
        copies = tuple(
            [
                Message(ids, properties, message.body, expires_ms, message.is_durable, message.priority)
                for properties, message in zip(said, messages, strict=True)
            ]
        )
        context.writer.append(Publish(None, None, 0, copies), False, len(ids) * len(copies))
        yield from context.state.finish_in_steps()
        yield MOVED_AS_TARGETS * len(copies) + len(ids)
