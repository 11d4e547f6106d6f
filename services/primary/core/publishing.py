"""Publishing: routing, limits, durability and transactions of a batch of messages, settled before its records are appended.

Law: a batch is enqueued as a whole or refused as a whole. Records name queues, never exchanges; an enqueue is durable if the
message and its queue are, whatever routed it (Reliability Requirements). Each function appends the record that answers the
command, or raises `Rejected` before it appended anything.
"""

from collections.abc import Sequence

from lockstep.core.commands import SPAN_MS_MAX, OutgoingMessage, PublishCommand
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.exchanges import DEFAULT_EXCHANGE
from lockstep.core.ids import QueueId, TransactionKey
from lockstep.core.queues import Queue
from lockstep.core.records import AcceptCommand, CommandRef, Message, Publish
from services.primary.core.context import SHOWN_MAX, Context, Request, shown
from services.primary.core.removing import evict
from services.primary.core.transacting import operation

_Routed = list[tuple[OutgoingMessage, tuple[QueueId, ...]]]


def publish(context: Context, request: Request, command: PublishCommand) -> None:
    if context.is_store_low:
        raise Rejected(
            ErrorCode.STORE_FULL,
            f"the store of resource set {context.state.set_name!r} is full",
            set_name=context.state.set_name,
        )
    _check_sizes(context, command)
    routed = _route(context, command)
    _check_limits(context, routed)
    key, ordinal = command.transaction, 0
    if key is not None:
        progress = operation(context, request.session, key, command.sequence, len(routed))
        ordinal = progress.ordinal
    runs = _runs(context, routed, request.now.wall_ms)
    if not runs:
        context.writer.append(AcceptCommand(request.ref, 0), False)
        return
    enqueues = sum(len(message.queues) for _, messages in runs for message in messages)
    single = len(runs) == 1
    for is_durable, messages in runs:
        ref = request.ref if single else None
        _append(context, ref, key, ordinal, messages, is_durable)
        ordinal += len(messages)
    if key is not None:
        context.progress[key].ordinal = ordinal
    if not single:
        context.writer.append(AcceptCommand(request.ref, enqueues), False)
    if key is None:
        for queue_id in sorted({queue for _, queues in routed for queue in queues}):
            evict(context, context.state.queues.by_id[queue_id])


def _append(
    context: Context,
    ref: CommandRef | None,
    key: TransactionKey | None,
    ordinal: int,
    messages: Sequence[Message],
    is_durable: bool,
) -> None:
    context.writer.append(Publish(ref, key, ordinal, tuple(messages)), is_durable)


def _check_sizes(context: Context, command: PublishCommand) -> None:
    settings = context.settings
    if len(command.messages) > settings.command_messages_max:
        raise Rejected(
            ErrorCode.TOO_LARGE,
            f"{len(command.messages)} messages in one command, at most {settings.command_messages_max}",
            command_messages_max=settings.command_messages_max,
        )
    total = 0
    for message in command.messages:
        size = len(message.body) + len(message.properties)
        total += size
        if size > settings.message_bytes_max:
            raise Rejected(
                ErrorCode.TOO_LARGE,
                f"a message of {size} bytes, message_bytes_max is {settings.message_bytes_max}",
                message_bytes=size,
                message_bytes_max=settings.message_bytes_max,
            )
        if not 0 <= message.ttl_ms <= SPAN_MS_MAX:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"ttl_ms is {message.ttl_ms}: not between 0 (none) and {SPAN_MS_MAX}",
                ttl_ms=message.ttl_ms,
            )
    if total > settings.command_bytes_max:
        raise Rejected(
            ErrorCode.TOO_LARGE,
            f"{total} bytes in one command, at most {settings.command_bytes_max}",
            command_bytes=total,
        )


def _route(context: Context, command: PublishCommand) -> _Routed:
    state = context.state
    if command.exchange == DEFAULT_EXCHANGE:
        # Exclusive queues too: only their session consumes, and anybody may answer it there.
        queues: tuple[QueueId, ...] = (context.queue(command.routing_key).id,)
        return [(message, queues) for message in command.messages]
    exchange = state.exchanges.get(command.exchange)
    if exchange is None:
        raise Rejected(
            ErrorCode.NOT_FOUND,
            f"no exchange {shown(command.exchange)}",
            exchange=command.exchange[:SHOWN_MAX],
        )
    if exchange.kind == "headers":
        return [
            (message, state.route(exchange.id, command.routing_key, dict(message.headers)))
            for message in command.messages
        ]
    queues = state.route(exchange.id, command.routing_key, {})
    return [(message, queues) for message in command.messages]


def _check_limits(context: Context, routed: _Routed) -> None:
    """Raises `Rejected` QUEUE_FULL when a queue that does not evict would overflow."""
    arriving: dict[QueueId, list[int]] = {}
    for message, queues in routed:
        for queue_id in queues:
            counts = arriving.setdefault(queue_id, [0, 0])
            counts[0] += 1
            counts[1] += len(message.body) + len(message.properties)
    for queue_id, (count, size) in arriving.items():
        queue = context.state.queues.by_id[queue_id]
        definition = queue.definition
        if definition.is_evicting or not (definition.length_max or definition.bytes_max):
            continue
        if definition.length_max and queue.length + queue.reserved_length + count > definition.length_max:
            raise _full(queue, "length_max", definition.length_max)
        if definition.bytes_max and queue.bytes + queue.reserved_bytes + size > definition.bytes_max:
            raise _full(queue, "bytes_max", definition.bytes_max)


def _full(queue: Queue, limit: str, value: int) -> Rejected:
    return Rejected(
        ErrorCode.QUEUE_FULL,
        f"queue {queue.name!r} is full: {limit} is {value}",
        queue=queue.name,
        limit=limit,
        value=value,
    )


def _runs(context: Context, routed: _Routed, wall_ms: int) -> list[tuple[bool, list[Message]]]:
    """The messages with a queue to go to, as runs of (durable, messages): what is durable on one queue only is there twice."""
    queues = context.state.queues.by_id
    runs: list[tuple[bool, list[Message]]] = []
    split: dict[tuple[QueueId, ...], tuple[tuple[QueueId, ...], tuple[QueueId, ...]]] = {}
    for message, targets in routed:
        if not targets:
            continue
        kinds = split.get(targets)
        if kinds is None:
            kinds = split[targets] = (
                tuple(target for target in targets if queues[target].is_durable),
                tuple(target for target in targets if not queues[target].is_durable),
            )
        expires_ms = _expires(queues, targets, message.ttl_ms, wall_ms)
        parts = ((True, kinds[0]), (False, kinds[1])) if message.is_durable else ((False, targets),)
        for is_durable, going in parts:
            if not going:
                continue
            if not runs or runs[-1][0] is not is_durable:
                runs.append((is_durable, []))
            runs[-1][1].append(
                Message(going, message.properties, message.body, expires_ms, message.is_durable)
            )
    return runs


def _expires(queues: dict[QueueId, Queue], targets: tuple[QueueId, ...], ttl_ms: int, wall_ms: int) -> int:
    """When a message expires: by its own time to live or the shortest of its queues', 0: never."""
    shortest = ttl_ms
    for target in targets:
        queue_ttl = queues[target].definition.message_ttl_ms
        if queue_ttl and (not shortest or queue_ttl < shortest):
            shortest = queue_ttl
    return wall_ms + shortest if shortest else 0
