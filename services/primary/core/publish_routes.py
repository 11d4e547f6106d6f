"""Which queues a publish goes to: what it may bring at all, and what its exchange chooses for each of its messages."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter, itemgetter

from lockstep.core.alike_messages import AlikeMessages, sizes_of
from lockstep.core.commands import SPAN_MS_MAX, OutgoingMessage, PublishCommand
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.exchanges import DEFAULT_EXCHANGE, Exchange
from lockstep.core.ids import QueueId
from services.primary.core.context import SHOWN_MAX, Context, check_text, shown
from services.primary.core.selecting import (
    COMPARED_IN_ALL,
    COMPARED_MANY,
    PLACES_MANY,
    QUEUES_MANY,
    Asking,
    check_places,
)

_TTL_MS = attrgetter("ttl_ms")
TargetIds = tuple[QueueId, ...]
Routed = list[tuple[TargetIds, Sequence[OutgoingMessage]]]
"""Messages with the queues that they go to, in their order; those of neighbours that go to the same are mostly one object."""
Arriving = tuple[list[int], int, Routed, int]
"""What a publish brings: (bytes of each message's content, of all of them, where they go, how many places they get there). No
places: it all goes to one queue in one go, as it nearly always does, or nowhere."""


def find(context: Context, command: PublishCommand) -> Arriving:
    """Where the messages go; raises `Rejected`, and `LongSelection`."""
    if context.is_store_low:
        raise Rejected(
            ErrorCode.STORE_FULL,
            f"the store of resource set {context.state.set_name!r} is full",
            set_name=context.state.set_name,
        )
    sizes, total = _check_sizes(context, command)
    routed = _route(context, command)
    if not routed or (len(routed) == 1 and len(routed[0][0]) == 1):
        return sizes, total, routed, 0
    places = sum([len(targets) * len(messages) for targets, messages in routed])
    check_places(places, context.settings.command_places_max)
    return sizes, total, routed, places


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


def _route(context: Context, command: PublishCommand) -> Routed:
    """The queues of the messages; those that go nowhere are left out."""
    state, messages = context.state, command.messages
    if command.exchange == DEFAULT_EXCHANGE:
        # Exclusive queues too: only their session consumes, and anybody may answer it there.
        targets: TargetIds = (context.queue(command.routing_key).id,)
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
    compared, are_apart = matcher.compared, exchange.kind == "headers"
    is_long = (
        matcher.has_selectors
        or (compared >= COMPARED_MANY and (are_apart or matcher.remembered(key, {}) is None))
        or (are_apart and compared * len(messages) >= COMPARED_IN_ALL)
    )
    asking = context.selectors.asking(exchange, context.settings.command_places_max) if is_long else None
    if not are_apart or isinstance(messages, AlikeMessages):
        return _choose(context, exchange, key, messages, asking)
    routed: Routed = []
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
) -> Routed:
    """What an exchange chooses for messages, which have the same headers if it looks at them; raises `LongSelection`.

    `asking`: of the publish, if there are selectors, or very much that the key or headers are to be compared with.
    """
    if not messages:
        return []
    headers = dict(messages[0].headers) if exchange.kind == "headers" else {}
    if asking is None:
        certain = exchange.matcher.targets(key, headers).certain
        queues = len(certain)
        if queues >= QUEUES_MANY or (queues > 1 and queues * len(messages) > PLACES_MANY):
            context.selectors.check_share(context.now)
        return [(certain, messages)] if certain else []
    if isinstance(messages, AlikeMessages):
        [targets] = asking.queues_of(key, headers, [messages], len(messages), context.now)
        return [(targets, messages)] if targets else []
    found = zip(asking.queues_of(key, headers, messages, 1, context.now), messages, strict=True)
    stretches = groupby(found, itemgetter(0))
    return [(targets, tuple(message for _, message in alike)) for targets, alike in stretches if targets]
