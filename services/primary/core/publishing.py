"""Publishing: routing, limits, durability and transactions of a batch of messages, settled before its records are appended.

Law: a batch is enqueued as a whole or refused as a whole. Records name queues, never exchanges; an enqueue is durable if the
message and its queue are, whatever routed it (Reliability Requirements). Each function appends the record that answers the
command, or raises `Rejected` before it appended anything.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import NamedTuple

from lockstep.core.alike_messages import AlikeMessages, size_of_outgoing, sizes_of
from lockstep.core.apply_messages import SHARES_AT_ONCE
from lockstep.core.commands import (
    SPAN_MS_MAX,
    OutgoingMessage,
    PublishCommand,
)
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.exchanges import DEFAULT_EXCHANGE, Exchange
from lockstep.core.ids import QueueId, SessionKey
from lockstep.core.packed_messages import alike_of
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import (
    AcceptCommand,
    CommandRef,
    Message,
    Publish,
)
from services.primary.core.alone import LongCommand
from services.primary.core.context import (
    SHOWN_MAX,
    Context,
    Request,
    check_text,
    shown,
)
from services.primary.core.open_transactions import TransactionProgress
from services.primary.core.removing import evict, evict_in_steps
from services.primary.core.selecting import COMPARED_MANY, QUEUES_MANY, STEPS_PER_QUEUE, Asking
from services.primary.core.transacting import operation

_IS_DURABLE, _TTL_MS = attrgetter("is_durable"), attrgetter("ttl_ms")
_MANY = 32
"""Messages from which on a loop takes longer than iterators, which take as long to be made as 20 messages."""
_QUEUE_BYTES = 9
"""What a record takes to name one queue of one message, at most."""
_Targets = tuple[QueueId, ...]
_Routed = list[tuple[_Targets, Sequence[OutgoingMessage]]]
"""Messages with the queues that they go to, in their order."""
_Run = tuple[bool, list[Message]]
"""(durable, messages) of one record."""


class Batch(NamedTuple):
    """What a publish brings, as far as the set takes it."""

    sizes: list[int]
    """Bytes of each message's content."""
    bytes: int
    """Of all of them, as often as the log has them: once for each kind of queue that they go to."""
    queues: list[Queue]
    """Those that get some of it, by id."""
    runs: list[_Run]


def publish(context: Context, request: Request, command: PublishCommand) -> None:
    """Raises `Rejected`, `LongSelection`, or `LongCommand`."""
    batch = admit(context, command)
    if len(batch.queues) > SHARES_AT_ONCE and command.transaction is None:
        raise LongCommand(_append_in_steps(context, request, command, batch))
    append_batch(context, request, command, batch, take_operation(context, request.session, command, batch))


def admit(context: Context, command: PublishCommand) -> Batch:
    """Where the messages go, and as which records; raises `Rejected`, and `LongSelection`."""
    if context.is_store_low:
        raise Rejected(
            ErrorCode.STORE_FULL,
            f"the store of resource set {context.state.set_name!r} is full",
            set_name=context.state.set_name,
        )
    sizes, total = _check_sizes(context, command)
    routed = _route(context, command)
    by_id = context.state.queues.by_id
    # What is chosen for one message is in order.
    chosen = routed[0][0] if len(routed) == 1 else sorted({queue for to, _ in routed for queue in to})
    queues = [by_id[queue] for queue in chosen]
    if len(queues) > 1:
        _check_spread(context, routed, len(queues))
        total = _check_written(context, routed, len(queues))
    _check_limits(queues, routed)
    if len(queues) >= QUEUES_MANY:
        context.selectors.pay(len(queues) * STEPS_PER_QUEUE)
    return Batch(sizes, total, queues, _runs(context, command, routed))


def take_operation(
    context: Context, session: SessionKey, command: PublishCommand, batch: Batch
) -> TransactionProgress | None:
    """Take it as an operation of its transaction, if it has one; raises `Rejected`."""
    key = command.transaction
    if key is None:
        return None
    ordinals = sum([len(messages) for _, messages in batch.runs])
    return operation(context, session, key, command.sequence, ordinals, batch.bytes)


def only_run(
    ref: CommandRef | None, command: PublishCommand, ordinal: int, batch: Batch
) -> tuple[bool, Publish]:
    """The record of a batch that is one run, and whether it is durable."""
    [(is_durable, messages)] = batch.runs
    are_alike = isinstance(command.messages, AlikeMessages) and command.exchange == DEFAULT_EXCHANGE
    alike = alike_of(messages, batch.sizes, are_alike) if len(messages) == len(batch.sizes) else None
    return is_durable, Publish(ref, command.transaction, ordinal, tuple(messages), alike)


def append_batch(
    context: Context,
    request: Request,
    command: PublishCommand,
    batch: Batch,
    progress: TransactionProgress | None,
) -> None:
    """Append what was admitted, in `progress` if it is of a transaction."""
    ordinal = progress.ordinal if progress is not None else 0
    if len(batch.runs) == 1:
        is_durable, record = only_run(request.ref, command, ordinal, batch)
        context.writer.append(record, is_durable)
    else:
        for _ in _append_runs(context, request, command, batch, ordinal):
            pass
    if progress is not None:
        progress.ordinal += sum([len(messages) for _, messages in batch.runs])
        return
    for queue in batch.queues:
        evict(context, queue)


def _append_in_steps(
    context: Context, request: Request, command: PublishCommand, batch: Batch
) -> Iterator[int]:
    """Append what goes to many queues, in no transaction, in steps that say what they cost; nothing may come between."""
    yield len(batch.queues)  # Where it goes was found in the same step.
    if len(batch.runs) == 1:
        is_durable, record = only_run(request.ref, command, 0, batch)
        context.writer.append(record, is_durable)
        yield from context.state.finish_in_steps()
    else:
        yield from _append_runs(context, request, command, batch, 0)
    for queue in batch.queues:
        yield from evict_in_steps(context, queue)


def _append_runs(
    context: Context, request: Request, command: PublishCommand, batch: Batch, ordinal: int
) -> Iterator[int]:
    """Records of several kinds, and the one that answers for them, in such steps."""
    enqueues = 0
    for is_durable, messages in batch.runs:
        context.writer.append(Publish(None, command.transaction, ordinal, tuple(messages)), is_durable)
        yield from context.state.finish_in_steps()
        ordinal += len(messages)
        enqueues += sum(len(message.queues) for message in messages)
    if request.ref is not None:
        context.writer.append(AcceptCommand(request.ref, enqueues), False)


def _check_sizes(context: Context, command: PublishCommand) -> tuple[list[int], int]:
    """The bytes of each message's content, and of all; raises `Rejected` TOO_LARGE, or INVALID_ARGUMENT for a time to live."""
    settings, messages = context.settings, command.messages
    if len(messages) > settings.command_messages_max:
        raise LimitReached(
            "command_messages_max",
            ErrorCode.TOO_LARGE,
            f"{len(messages)} messages in one command, at most {settings.command_messages_max}",
            command_messages_max=settings.command_messages_max,
        )
    sizes = sizes_of(messages)
    if max(sizes, default=0) > settings.message_bytes_max:
        raise LimitReached(
            "message_bytes_max",
            ErrorCode.TOO_LARGE,
            f"a message of {max(sizes)} bytes, message_bytes_max is {settings.message_bytes_max}",
            message_bytes=max(sizes),
            message_bytes_max=settings.message_bytes_max,
        )
    total = sum(sizes)
    if total > settings.command_bytes_max:
        raise LimitReached(
            "command_bytes_max",
            ErrorCode.TOO_LARGE,
            f"{total} bytes in one command, at most {settings.command_bytes_max}",
            command_bytes=total,
        )
    for ttl_ms in (messages.ttl_ms,) if isinstance(messages, AlikeMessages) else set(map(_TTL_MS, messages)):
        if not 0 <= ttl_ms <= SPAN_MS_MAX:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"ttl_ms is {ttl_ms}: not between 0 (none) and {SPAN_MS_MAX}",
                ttl_ms=ttl_ms,
            )
    return sizes, total


def _check_spread(context: Context, routed: _Routed, queues: int) -> None:
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


def _check_written(context: Context, routed: _Routed, queues: int) -> int:
    """The bytes that the log gets of these messages, which go to so many queues; raises `Rejected` TOO_LARGE: a frame holds whole
    commands, and no stream would carry it.
    """
    written = 0
    for targets, messages in routed:
        kinds = len(_parts(context, targets, _has_durable(messages)))
        written += kinds * size_of_outgoing(messages) + len(messages) * len(targets) * _QUEUE_BYTES
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


def _route(context: Context, command: PublishCommand) -> _Routed:
    """The queues of the messages; those that go nowhere are left out."""
    state, messages = context.state, command.messages
    if command.exchange == DEFAULT_EXCHANGE:
        # Exclusive queues too: only their session consumes, and anybody may answer it there.
        targets: _Targets = (context.queue(command.routing_key).id,)
        return [(targets, messages)] if messages else []
    check_text("a routing key", command.routing_key, context.settings.name_bytes_max)
    exchange = state.exchanges.get(command.exchange)
    if exchange is None:
        raise Rejected(
            ErrorCode.NOT_FOUND,
            f"no exchange {shown(command.exchange)}",
            exchange=command.exchange[:SHOWN_MAX],
        )
    matcher, key = exchange.matcher, command.routing_key
    is_long = matcher.has_selectors or (
        matcher.compared >= COMPARED_MANY
        and (exchange.kind == "headers" or matcher.remembered(key, {}) is None)
    )
    asking = context.selectors.asking(exchange) if is_long else None
    if exchange.kind != "headers" or isinstance(messages, AlikeMessages):
        return _choose(context, exchange, key, messages, asking)
    routed: _Routed = []
    # What a command says once for many messages is one object here.
    for _, alike in groupby(messages, lambda message: id(message.headers)):
        routed += _choose(context, exchange, key, tuple(alike), asking)
    return routed


def _choose(
    context: Context,
    exchange: Exchange,
    key: str,
    messages: Sequence[OutgoingMessage],
    asking: Asking | None,
) -> _Routed:
    """What an exchange chooses for messages, which have the same headers if it looks at them; raises `LongSelection`.

    `asking`: of the publish, if there are selectors, or very much that the key or headers are to be compared with.
    """
    if not messages:
        return []
    headers = dict(messages[0].headers) if exchange.kind == "headers" else {}
    if asking is None:
        certain = exchange.matcher.targets(key, headers).certain
        if len(certain) >= QUEUES_MANY:
            context.selectors.check_share(context.now)
        return [(certain, messages)] if certain else []
    if isinstance(messages, AlikeMessages):
        [targets] = asking.queues_of(key, headers, [messages], context.now)
        return [(targets, messages)] if targets else []
    found = zip(asking.queues_of(key, headers, messages, context.now), messages, strict=True)
    stretches = groupby(found, itemgetter(0))
    return [(targets, tuple(message for _, message in alike)) for targets, alike in stretches if targets]


def _check_limits(queues: list[Queue], routed: _Routed) -> None:
    """Raises `Rejected` QUEUE_FULL when a queue that does not evict would overflow."""
    limited = [
        queue
        for queue in queues
        if not queue.definition.is_evicting and (queue.definition.length_max or queue.definition.bytes_max)
    ]
    if not limited:
        return
    arriving = {queue.id: 0 for queue in limited}
    arriving_bytes = dict(arriving)
    for targets, messages in routed:
        size = size_of_outgoing(messages)
        for target in targets:
            if target in arriving:
                arriving[target] += len(messages)
                arriving_bytes[target] += size
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


def _runs(context: Context, command: PublishCommand, routed: _Routed) -> list[_Run]:
    """The messages as records: what differs by queue (durability, expiry) is there twice. Every queue keeps their order."""
    asked = command.messages
    if isinstance(asked, AlikeMessages) and len(routed) == 1 and len(routed[0][0]) == 1:
        # Nearly always.
        [(targets, messages)] = routed
        [(is_durable, ttl_ms, queues)] = _parts(context, targets, asked.is_durable)
        return [(is_durable, _messages(context, messages, ttl_ms, queues))]
    runs: list[_Run] = []
    if isinstance(asked, AlikeMessages) or len(set(map(_IS_DURABLE, asked))) <= 1:
        # No queue gets messages in both kinds of records then: one record of each kind is enough.
        by_kind: dict[bool, list[Message]] = {}
        for targets, messages in routed:
            for is_durable, ttl_ms, queues in _parts(context, targets, messages[0].is_durable):
                by_kind.setdefault(is_durable, []).extend(_messages(context, messages, ttl_ms, queues))
        return list(by_kind.items())
    for targets, messages in routed:
        for is_asked, stretch in groupby(messages, key=lambda message: message.is_durable):
            alike = list(stretch)
            for is_durable, ttl_ms, queues in _parts(context, targets, is_asked):
                if not runs or runs[-1][0] is not is_durable:
                    runs.append((is_durable, []))
                runs[-1][1].extend(_messages(context, alike, ttl_ms, queues))
    return runs


def _parts(context: Context, targets: _Targets, is_durable: bool) -> list[tuple[bool, int, _Targets]]:
    """What a message becomes: (durable, the queues' time to live or 0, queues)."""
    by_id = context.state.queues.by_id
    if len(targets) == 1:
        queue = by_id[targets[0]]
        return [(is_durable and queue.is_durable, queue.definition.message_ttl_ms, targets)]
    kinds = [
        (is_durable and queue.is_durable, queue.definition.message_ttl_ms)
        for queue in [by_id[target] for target in targets]
    ]
    if kinds.count(kinds[0]) == len(kinds):
        return [(*kinds[0], targets)]
    found: dict[tuple[bool, int], list[QueueId]] = {}
    for target, kind in zip(targets, kinds, strict=True):
        found.setdefault(kind, []).append(target)
    return [(*kind, tuple(queues)) for kind, queues in found.items()]


def _messages(
    context: Context, messages: Sequence[OutgoingMessage], ttl_ms: int, queues: _Targets
) -> list[Message]:
    """They expire by their own time to live or the queues', whichever is shorter."""
    if isinstance(messages, AlikeMessages) and not (ttl_ms or messages.ttl_ms):
        properties, is_durable = messages.properties, messages.is_durable
        priority, bodies = messages.priority, messages.bodies
        if priority != PRIORITY_DEFAULT:
            return [Message(queues, properties, body, 0, is_durable, priority) for body in bodies]
        if len(bodies) < _MANY:
            return [Message(queues, properties, body, 0, is_durable) for body in bodies]
        return list(map(Message, repeat(queues), repeat(properties), bodies, repeat(0), repeat(is_durable)))
    if not ttl_ms and not any(map(_TTL_MS, messages)):
        return [
            Message(queues, each.properties, each.body, 0, each.is_durable, each.priority)
            for each in messages
        ]
    context.expiry.expect(queues)
    now_ms = context.now.wall_ms
    spans = [min(each.ttl_ms or ttl_ms, ttl_ms or each.ttl_ms) for each in messages]
    return [
        Message(
            queues, each.properties, each.body, now_ms + span if span else 0, each.is_durable, each.priority
        )
        for each, span in zip(messages, spans, strict=True)
    ]
