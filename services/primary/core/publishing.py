"""Publishing: routing, limits, durability and transactions of a batch of messages, settled before its records are appended.

Law: a batch is enqueued as a whole or refused as a whole. Records name queues, never exchanges; an enqueue is durable if the
message and its queue are, whatever routed it (Reliability Requirements). Each function appends the record that answers the
command, or raises `Rejected` before it appended anything.
"""

from lockstep.core.commands import SPAN_MS_MAX, OutgoingMessage, PublishCommand
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.exchanges import DEFAULT_EXCHANGE
from lockstep.core.ids import QueueId
from lockstep.core.queues import Queue
from lockstep.core.records import AcceptCommand, Message, Publish
from services.primary.core.context import SHOWN_MAX, Context, Request, shown
from services.primary.core.removing import evict
from services.primary.core.transacting import operation

_Targets = tuple[QueueId, ...]
_Run = tuple[bool, list[Message]]
"""(durable, messages) of one record."""


def publish(context: Context, request: Request, command: PublishCommand) -> None:
    if context.is_store_low:
        raise Rejected(
            ErrorCode.STORE_FULL,
            f"the store of resource set {context.state.set_name!r} is full",
            set_name=context.state.set_name,
        )
    _check_sizes(context, command)
    routed = _route(context, command)
    _check_limits(context, command, routed)
    runs = _runs(context, command, routed, request.now.wall_ms)
    key, ordinal = command.transaction, 0
    if key is not None:
        progress = operation(
            context, request.session, key, command.sequence, sum(len(messages) for _, messages in runs)
        )
        ordinal = progress.ordinal
    if len(runs) == 1:
        is_durable, messages = runs[0]
        context.writer.append(Publish(request.ref, key, ordinal, tuple(messages)), is_durable)
        ordinal += len(messages)
    else:
        enqueues = 0
        for is_durable, messages in runs:
            context.writer.append(Publish(None, key, ordinal, tuple(messages)), is_durable)
            ordinal += len(messages)
            enqueues += sum(len(message.queues) for message in messages)
        context.writer.append(AcceptCommand(request.ref, enqueues), False)
    if key is not None:
        progress.ordinal = ordinal
        return
    for queue_id in sorted({queue for targets in set(routed) for queue in targets}):
        evict(context, context.state.queues.by_id[queue_id])


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


def _route(context: Context, command: PublishCommand) -> list[_Targets]:
    """The queues of each message."""
    state = context.state
    if command.exchange == DEFAULT_EXCHANGE:
        # Exclusive queues too: only their session consumes, and anybody may answer it there.
        return [(context.queue(command.routing_key).id,)] * len(command.messages)
    exchange = state.exchanges.get(command.exchange)
    if exchange is None:
        raise Rejected(
            ErrorCode.NOT_FOUND,
            f"no exchange {shown(command.exchange)}",
            exchange=command.exchange[:SHOWN_MAX],
        )
    if exchange.kind == "headers":
        return [
            state.route(exchange.id, command.routing_key, dict(message.headers))
            for message in command.messages
        ]
    return [state.route(exchange.id, command.routing_key, {})] * len(command.messages)


def _check_limits(context: Context, command: PublishCommand, routed: list[_Targets]) -> None:
    """Raises `Rejected` QUEUE_FULL when a queue that does not evict would overflow."""
    by_id = context.state.queues.by_id
    ids = sorted({queue for targets in set(routed) for queue in targets})
    limited = [by_id[queue_id] for queue_id in ids if _is_limited(by_id[queue_id])]
    for queue in limited:
        arriving = [
            len(message.body) + len(message.properties)
            for message, targets in zip(command.messages, routed, strict=True)
            if queue.id in targets
        ]
        length_max, bytes_max = queue.definition.length_max, queue.definition.bytes_max
        if length_max and queue.length + queue.reserved_length + len(arriving) > length_max:
            raise _full(queue, "length_max", length_max)
        if bytes_max and queue.bytes + queue.reserved_bytes + sum(arriving) > bytes_max:
            raise _full(queue, "bytes_max", bytes_max)


def _is_limited(queue: Queue) -> bool:
    definition = queue.definition
    return bool(definition.length_max or definition.bytes_max) and not definition.is_evicting


def _full(queue: Queue, limit: str, value: int) -> Rejected:
    return Rejected(
        ErrorCode.QUEUE_FULL,
        f"queue {queue.name!r} is full: {limit} is {value}",
        queue=queue.name,
        limit=limit,
        value=value,
    )


_Part = tuple[bool, int, _Targets]
"""(durable, the queues' time to live or 0, queues): what one message becomes once for."""


def _runs(context: Context, command: PublishCommand, routed: list[_Targets], wall_ms: int) -> list[_Run]:
    """The messages that have a queue to go to, as records: what differs by queue (durability, expiry) is there twice."""
    parts: dict[tuple[_Targets, bool], list[_Part]] = {}
    for targets in set(routed):
        for is_durable in (True, False):
            parts[targets, is_durable] = _parts(context, targets, is_durable)
    first = command.messages[0].is_durable if command.messages else True
    if all(message.is_durable is first for message in command.messages):
        # No queue gets messages of both kinds of records then: one record for each kind keeps every queue's order.
        by_kind: dict[bool, list[Message]] = {}
        for message, targets in zip(command.messages, routed, strict=True):
            for part in parts[targets, first]:
                by_kind.setdefault(part[0], []).append(_message(context, message, part, wall_ms))
        return list(by_kind.items())
    runs: list[_Run] = []
    for message, targets in zip(command.messages, routed, strict=True):
        for part in parts[targets, message.is_durable]:
            if not runs or runs[-1][0] is not part[0]:
                runs.append((part[0], []))
            runs[-1][1].append(_message(context, message, part, wall_ms))
    return runs


def _parts(context: Context, targets: _Targets, is_durable: bool) -> list[_Part]:
    found: dict[tuple[bool, int], list[QueueId]] = {}
    for target in targets:
        queue = context.state.queues.by_id[target]
        kind = is_durable and queue.is_durable, queue.definition.message_ttl_ms
        found.setdefault(kind, []).append(target)
    return [(*kind, tuple(queues)) for kind, queues in found.items()]


def _message(context: Context, message: OutgoingMessage, part: _Part, wall_ms: int) -> Message:
    """It expires by its own time to live or the queue's, whichever is shorter."""
    _, ttl_ms, queues = part
    if message.ttl_ms and (not ttl_ms or message.ttl_ms < ttl_ms):
        ttl_ms = message.ttl_ms
    if not ttl_ms:
        return Message(queues, message.properties, message.body, 0, message.is_durable)
    context.expiry.expect(queues)
    return Message(queues, message.properties, message.body, wall_ms + ttl_ms, message.is_durable)
