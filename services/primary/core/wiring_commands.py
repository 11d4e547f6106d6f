"""Commands on queues, exchanges and bindings: checked here, settled in records.

Law: a name is claimed in the cluster's directory before its declaration is appended (names are unique in the cluster, DESIGN 2),
and given back only when the deletion is committed (`NameClaims`). Each function appends the record that answers the command, or
raises `Rejected` before it appended anything.
"""

from msgspec.structs import replace

from lockstep.core.commands import (
    BindCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.counted import counted
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.exchanges import EXCHANGE_KINDS, Binding, Exchange
from lockstep.core.ids import SessionKey
from lockstep.core.records import (
    AcceptCommand,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.primary.core.context import SHOWN_MAX, Context, Request, check_name, check_text, shown
from services.primary.core.dead_letter_routes import dead_letter_exchange


def needs_claim(context: Context, command: object) -> tuple[str, str] | None:
    """(kind, name) to claim before this command can be executed: it declares what is not there yet.

    Raises `Rejected` for what could not be declared under any name: nothing is claimed for it.
    """
    match command:
        case DeclareQueueCommand(name=name):
            check_name("queue", name, context.settings.name_bytes_max)
            _check_options(context, command.options)
            return None if context.state.queues.get(name) else ("queue", name)
        case DeclareExchangeCommand(name=name):
            check_name("exchange", name, context.settings.name_bytes_max)
            _check_kind(command)
            return None if context.state.exchanges.get(name) else ("exchange", name)
        case _:
            return None


def declare_queue(context: Context, request: Request, command: DeclareQueueCommand) -> None:
    options = command.options
    wanted = DeclareQueue(
        None,
        command.name,
        options.is_durable and not options.is_exclusive,
        request.session if options.is_exclusive else SessionKey(0),
        options.is_auto_delete,
        options.length_max,
        options.bytes_max,
        options.is_evicting,
        options.message_ttl_ms,
        options.dead_letter_exchange,
        options.dead_letter_key,
        options.delivery_count_max,
    )
    wanted = _normal(wanted)
    existing = context.state.queues.get(command.name)
    if existing is not None:
        context.queue(command.name, request.session)
        if _normal(existing.definition) != wanted:
            raise Rejected(
                ErrorCode.ALREADY_EXISTS,
                f"queue {command.name!r} exists with other options",
                queue=command.name,
            )
        context.writer.append(AcceptCommand(request.ref, existing.id), False)
        return
    context.writer.append(_with_command(wanted, request), wanted.is_durable)


def _normal(definition: DeclareQueue) -> DeclareQueue:
    """What was declared, in one spelling: a queue of an older version may have another."""
    return replace(definition, is_used=False, dead_letter_exchange=dead_letter_exchange(definition))


def _with_command(wanted: DeclareQueue, request: Request) -> DeclareQueue:
    values = [getattr(wanted, name) for name in wanted.__struct_fields__[1:]]
    return DeclareQueue(request.ref, *values)


def _check_options(context: Context, options: QueueOptions) -> None:
    bytes_max = context.settings.name_bytes_max
    check_text("the dead-letter exchange", options.dead_letter_exchange or "", bytes_max)
    check_text("the dead-letter key", options.dead_letter_key, bytes_max)
    numbers = {
        "length_max": options.length_max,
        "bytes_max": options.bytes_max,
        "message_ttl_ms": options.message_ttl_ms,
        "delivery_count_max": options.delivery_count_max,
    }
    for name, value in numbers.items():
        if not 0 <= value < 1 << 53:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT, f"{name} is {value}: not between 0 (none) and 2^53", option=name
            )


def delete_queue(context: Context, request: Request, command: DeleteQueueCommand) -> None:
    queue = context.queue(command.name, request.session)
    if command.if_unused and context.dispatch.consumer(queue.id):
        raise Rejected(ErrorCode.IN_USE, f"queue {command.name!r} has consumers", queue=command.name)
    if command.if_empty and queue.length:
        raise Rejected(
            ErrorCode.IN_USE,
            f"queue {command.name!r} has {counted(queue.length, 'message')}",
            queue=command.name,
        )
    prepared = context.state.transactions.prepared_touching(queue.id)
    if prepared:
        raise Rejected(
            ErrorCode.IN_USE,
            f"a prepared transaction touches queue {command.name!r}",
            queue=command.name,
            transaction=prepared[0],
        )
    context.writer.append(DeleteQueue(request.ref, queue.id), queue.is_durable)


def declare_exchange(context: Context, request: Request, command: DeclareExchangeCommand) -> None:
    existing = context.state.exchanges.get(command.name)
    if existing is None:
        context.writer.append(
            DeclareExchange(request.ref, command.name, command.kind, command.is_durable), command.is_durable
        )
    elif (existing.kind, existing.is_durable) == (command.kind, command.is_durable):
        context.writer.append(AcceptCommand(request.ref, existing.id), False)
    else:
        raise Rejected(
            ErrorCode.ALREADY_EXISTS,
            f"exchange {command.name!r} exists with other options",
            exchange=command.name,
        )


def _check_kind(command: DeclareExchangeCommand) -> None:
    if command.kind not in EXCHANGE_KINDS:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"no exchange kind {command.kind[:80]!r}: it is one of {', '.join(EXCHANGE_KINDS)}",
            exchange=command.name,
        )


def delete_exchange(context: Context, request: Request, command: DeleteExchangeCommand) -> None:
    exchange = _exchange(context, command.name)
    if command.if_unused and exchange.bindings:
        raise Rejected(ErrorCode.IN_USE, f"exchange {command.name!r} has bindings", exchange=command.name)
    context.writer.append(DeleteExchange(request.ref, exchange.id), exchange.is_durable)


def bind(context: Context, request: Request, command: BindCommand) -> None:
    exchange = _exchange(context, command.exchange)
    queue = context.queue(command.queue, request.session)
    check_text("a binding key", command.key, context.settings.name_bytes_max)
    for text in (text for pair in command.arguments for text in pair):
        check_text("a binding argument", text, context.settings.binding_arguments_bytes_max)
    # Empty ones are something, too.
    if sum(max(1, len(name) + len(value)) for name, value in command.arguments) > (
        context.settings.binding_arguments_bytes_max
    ):
        raise LimitReached(
            "binding_arguments_bytes_max",
            ErrorCode.TOO_LARGE,
            f"binding arguments have at most {context.settings.binding_arguments_bytes_max} bytes",
            exchange=command.exchange,
            queue=command.queue,
        )
    _check_selector(context, command)
    arguments = tuple(sorted(command.arguments))
    is_durable = exchange.is_durable and queue.is_durable
    is_there = Binding(exchange.id, queue.id, command.key, arguments) in exchange.bindings
    if command.is_unbind == is_there:
        kind = Unbind if command.is_unbind else Bind
        context.writer.append(kind(request.ref, exchange.id, queue.id, command.key, arguments), is_durable)
    else:
        context.writer.append(AcceptCommand(request.ref), False)


def _check_selector(context: Context, command: BindCommand) -> None:
    """A binding has one selector at most; raises `Rejected` INVALID_ARGUMENT."""
    selectors = [value for name, value in command.arguments if name == SELECTOR_ARGUMENT]
    if len(selectors) > 1:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"a binding has one {SELECTOR_ARGUMENT!r} at most")
    for selector in selectors:
        context.selectors.compiled(selector, context.now)


def _exchange(context: Context, name: str) -> Exchange:
    exchange = context.state.exchanges.get(name)
    if exchange is None:
        raise Rejected(ErrorCode.NOT_FOUND, f"no exchange {shown(name)}", exchange=name[:SHOWN_MAX])
    return exchange
