"""Publishing: limits and transactions of a batch of messages, settled before its records are appended.

Law: a batch is enqueued as a whole or refused as a whole. Records name queues, never exchanges; an enqueue is durable if the
message and its queue are, whatever routed it (Reliability Requirements). Each function appends the record that answers the
command, or raises `Rejected` before it appended anything.
"""

from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from lockstep.core.alike_messages import AlikeMessages, size_of_outgoing
from lockstep.core.apply_messages import SHARES_AT_ONCE
from lockstep.core.commands import (
    OutgoingMessage,
    PublishCommand,
)
from lockstep.core.content import size_of
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.exchanges import DEFAULT_EXCHANGE
from lockstep.core.ids import QueueId, SessionKey
from lockstep.core.packed_messages import alike_of
from lockstep.core.pieces import at_once
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import (
    AcceptCommand,
    CommandRef,
    Publish,
)
from services.primary.core.alone import LongCommand
from services.primary.core.context import (
    Context,
    Request,
)
from services.primary.core.open_transactions import TransactionProgress
from services.primary.core.publish_records import (
    ALIKE_PLACES_IN_ONE,
    PLACES_IN_ONE,
    Parts,
    Run,
    runs_in_steps,
    runs_of_one,
)
from services.primary.core.publish_routes import Arriving, Routed, TargetIds, find
from services.primary.core.removing import evict, evict_in_steps
from services.primary.core.selecting import (
    PLACES_MANY,
    PUBLISH_STEPS_MAX,
    QUEUES_MANY,
    STEPS_PER_PLACE,
    STEPS_PER_QUEUE,
)
from services.primary.core.transacting import operation
from services.primary.core.writer import MESSAGE_BYTES, NAME_BYTES

_IS_DURABLE, _KIND = attrgetter("is_durable"), attrgetter("is_durable", "ttl_ms", "priority")
_LOOKED_AT_IN_ONE = 500
"""What queues that are told apart cost in one step, at least, if there are more."""
_FOUND_SHIFT, _LIMITED_SHIFT = 6, 4
"""So many queues take a microsecond, as a power of two, where they are collected, or looked at for room."""


class Batch(NamedTuple):
    """What a publish brings, as far as the set takes it."""

    sizes: list[int]
    """Bytes of each message's content."""
    bytes: int
    """Of all of them, as often as the log has them: once for each kind of queue that they go to."""
    queues: list[Queue]
    """Those that get some of it, by id."""
    runs: list[Run]
    places: int
    """That its messages get in these queues."""


def publish(context: Context, request: Request, command: PublishCommand) -> None:
    """Raises `Rejected`, `LongSelection`, or `LongCommand`."""
    arriving = find(context, command)
    if is_long(context, arriving):
        raise LongCommand(publish_in_steps(context, request, command, arriving))
    batch = admit(context, command, arriving)
    append_batch(context, request, command, batch, take_operation(context, request.session, command, batch))


def publish_in_steps(
    context: Context, request: Request, command: PublishCommand, arriving: Arriving
) -> Iterator[int]:
    """The same of what is long, in steps that say what they cost; nothing may come between. Raises `Rejected` before it appended
    anything.
    """
    yield len(arriving[0])  # Where they go was found in the same step.
    batch = yield from _admit_in_steps(context, command, arriving)
    progress = take_operation(context, request.session, command, batch)
    yield from _append_runs(context, request, command, batch, progress)
    if progress is None:
        for queue in batch.queues:
            yield from evict_in_steps(context, queue)
    _pay(context, batch)


def is_long(context: Context, arriving: Arriving) -> bool:
    """Whether messages go to so many queues, or places in them, that admitting or appending them is too much for one step."""
    _, _, routed, places = arriving
    if not places:
        return False
    if sum([len(targets) for targets, _ in routed]) > SHARES_AT_ONCE:
        return True
    if places <= PLACES_IN_ONE:
        return False
    return places > ALIKE_PLACES_IN_ONE or len(routed) > 1 or not _are_ranges(context, *routed[0])


def _are_ranges(context: Context, targets: TargetIds, messages: Sequence[OutgoingMessage]) -> bool:
    """Whether messages are alike, and stay so in all of these queues: each gets a range, and nobody looks at its places."""
    if isinstance(messages, AlikeMessages):
        kinds = {(messages.is_durable, messages.ttl_ms, messages.priority)}
    else:
        kinds = set(map(_KIND, messages))
    if len(kinds) > 1 or kinds.pop()[1:] != (0, PRIORITY_DEFAULT):
        return False
    by_id = context.state.queues.by_id
    definitions = [by_id[target].definition for target in targets]
    return not any(each.message_ttl_ms or each.is_evicting for each in definitions)


def admit(context: Context, command: PublishCommand, arriving: Arriving) -> Batch:
    """What of it the set takes, and as which records, of what is not long; raises `Rejected`."""
    sizes, total, routed, places = arriving
    if places:
        batch = at_once(_admit_in_steps(context, command, arriving))
        _pay(context, batch)
        return batch
    queues = [context.state.queues.by_id[targets[0]] for targets, _ in routed]
    if queues:
        _check_room(_limited(queues), routed)
        places = len(routed[0][1])
    return Batch(sizes, total, queues, runs_of_one(context, command, routed), places)


def _pay(context: Context, batch: Batch) -> None:
    """Count it. Take of the selectors' share what goes to many queues costs, or much that goes to some: others have their turn
    behind it. They wait no longer for it than for whoever asks selectors.
    """
    places = sum([run.places for run in batch.runs if not run.are_alike])
    context.work += places
    if len(batch.queues) >= QUEUES_MANY or places > PLACES_MANY:
        # Those of one record go to about the same queues.
        queues = max(len(batch.queues), sum([len(run.messages[0].queues) for run in batch.runs]))
        steps = queues * STEPS_PER_QUEUE + places * STEPS_PER_PLACE
        context.selectors.pay(min(steps, PUBLISH_STEPS_MAX))


def _admit_in_steps(
    context: Context, command: PublishCommand, arriving: Arriving
) -> Generator[int, None, Batch]:
    """The same of anything, in steps that say what they cost; nothing may come between."""
    sizes, _, routed, places = arriving
    by_id = context.state.queues.by_id
    chosen: Sequence[QueueId] = routed[0][0]  # What is chosen for one message is in order.
    if len(routed) > 1:
        found, before = set(chosen), chosen
        for targets, _ in routed:
            if targets is not before:
                found.update(targets)
                yield len(targets) >> _FOUND_SHIFT
                before = targets
        chosen = sorted(found)
    queues = [by_id[queue] for queue in chosen]
    parts = Parts(context)
    _check_spread(context, routed, len(queues))
    total = yield from _check_written(context, parts, routed, len(queues))
    if limited := _limited(queues):
        yield from _check_limits(limited, routed)
    runs = yield from runs_in_steps(context, command, parts, routed)
    return Batch(sizes, total, queues, runs, places)


def take_operation(
    context: Context, session: SessionKey, command: PublishCommand, batch: Batch
) -> TransactionProgress | None:
    """Take it as an operation of its transaction, if it has one; raises `Rejected`."""
    key = command.transaction
    if key is None:
        return None
    ordinals = sum([len(run.messages) for run in batch.runs])
    return operation(context, session, key, command.sequence, ordinals, batch.bytes, batch.places)


def only_run(
    ref: CommandRef | None, command: PublishCommand, ordinal: int, batch: Batch
) -> tuple[bool, Publish]:
    """The record of a batch that is one run, and whether it is durable."""
    [run] = batch.runs
    messages = run.messages
    are_alike = run.are_alike or (
        isinstance(command.messages, AlikeMessages) and command.exchange == DEFAULT_EXCHANGE
    )
    alike = alike_of(messages, batch.sizes, are_alike) if len(messages) == len(batch.sizes) else None
    return run.is_durable, Publish(ref, command.transaction, ordinal, tuple(messages), alike)


def append_batch(
    context: Context,
    request: Request,
    command: PublishCommand,
    batch: Batch,
    progress: TransactionProgress | None,
) -> None:
    """Append what was admitted, and is not long; in `progress` if it is of a transaction."""
    if len(batch.runs) == 1:
        ordinal = progress.ordinal if progress is not None else 0
        is_durable, record = only_run(request.ref, command, ordinal, batch)
        context.writer.append(record, is_durable, batch.runs[0].places)
        if progress is not None:
            progress.ordinal += len(record.messages)
    else:
        at_once(_append_runs(context, request, command, batch, progress))
    if progress is None:
        for queue in batch.queues:
            evict(context, queue)


def _append_runs(
    context: Context,
    request: Request,
    command: PublishCommand,
    batch: Batch,
    progress: TransactionProgress | None,
) -> Generator[int, None, None]:
    """Append as many records as there are, and the one that answers for them, in steps that say what they cost."""
    ordinal = progress.ordinal if progress is not None else 0
    enqueues, state = 0, context.state
    for run in batch.runs:
        messages = run.messages
        alike = alike_of(messages, map(size_of, messages), True) if run.are_alike else None
        record = Publish(None, command.transaction, ordinal, tuple(messages), alike)
        context.writer.append(record, run.is_durable, run.places)
        yield from state.finish_in_steps()
        ordinal += len(messages)
        enqueues += run.places
        yield len(messages) + state.spread_cost()
    if request.ref is not None:
        context.writer.append(AcceptCommand(request.ref, enqueues), False)
    if progress is not None:
        progress.ordinal = ordinal


def _check_spread(context: Context, routed: Routed, queues: int) -> None:
    """Raises `LimitReached` TOO_LARGE when a message, of some that go to so many queues, goes to too many."""
    limit = context.settings.message_queues_max
    if queues <= limit:
        return
    most = max(len(targets) for targets, _ in routed)
    if most > limit:
        raise LimitReached(
            "message_queues_max",
            ErrorCode.TOO_LARGE,
            f"a message would go to {most} queues, message_queues_max is {limit}",
            message_queues=most,
            message_queues_max=limit,
        )


def _check_written(context: Context, parts: Parts, routed: Routed, queues: int) -> Generator[int, None, int]:
    """The bytes that the log gets of these messages, which go to so many queues; raises `Rejected` TOO_LARGE: a frame holds whole
    commands, and no stream would carry it.
    """
    written = cost = 0
    for targets, messages in routed:
        kinds = len(parts.of(targets, _has_durable(messages)))
        count = len(messages)
        written += kinds * (size_of_outgoing(messages) + count * MESSAGE_BYTES)
        written += count * len(targets) * NAME_BYTES
        cost += parts.cost()
        if cost >= _LOOKED_AT_IN_ONE:
            yield cost
            cost = 0
    limit = context.settings.command_bytes_max
    if written > limit:
        raise LimitReached(
            "command_bytes_max",
            ErrorCode.TOO_LARGE,
            f"one command would bring {written} bytes for {queues} queues, at most {limit}: each content once for every kind of "
            "queue (durability, time to live)",
            command_bytes=written,
        )
    return written


def _has_durable(messages: Sequence[OutgoingMessage]) -> bool:
    """Whether one of them is durable."""
    if isinstance(messages, AlikeMessages):
        return messages.is_durable
    return any(map(_IS_DURABLE, messages))


def _limited(queues: list[Queue]) -> list[Queue]:
    """Those that may be full: they have limits, and do not evict."""
    return [
        queue
        for queue in queues
        if not queue.definition.is_evicting and (queue.definition.length_max or queue.definition.bytes_max)
    ]


def _check_room(limited: list[Queue], routed: Routed) -> None:
    """Raises `Rejected` QUEUE_FULL when one of these would overflow."""
    if limited:
        for _ in _check_limits(limited, routed):
            pass


def _check_limits(limited: list[Queue], routed: Routed) -> Iterator[int]:
    """The same in steps that say what they cost."""
    arriving = {queue.id: 0 for queue in limited}
    arriving_bytes = dict(arriving)
    for targets, messages in routed:
        count, size = len(messages), size_of_outgoing(messages)
        for target in targets:
            if target in arriving:
                arriving[target] += count
                arriving_bytes[target] += size
        yield len(targets) >> _LIMITED_SHIFT
    for queue in limited:
        length_max, bytes_max = queue.definition.length_max, queue.definition.bytes_max
        if length_max and queue.length + queue.reserved_length + arriving[queue.id] > length_max:
            raise _full(queue, "length_max", length_max)
        if bytes_max and queue.bytes + queue.reserved_bytes + arriving_bytes[queue.id] > bytes_max:
            raise _full(queue, "bytes_max", bytes_max)


def _full(queue: Queue, limit: str, value: int) -> Rejected:
    return Rejected(
        ErrorCode.QUEUE_FULL,
        f"queue {queue.name!r} is full: {limit} is {value}",
        queue=queue.name,
        limit=limit,
        value=value,
    )
