"""Descriptions: the set in figures, and what was declared of a queue or an exchange.

Law: each is made at the log's end, and told when that is committed (R11).
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from lockstep.core.errors import ErrorCode
from lockstep.core.requests import Describe, DescribeExchange, DescribeQueue
from lockstep.core.server_messages import Description, ExchangeDetails, QueueDescription, QueueDetails
from lockstep.core.state_hash import hash_in_steps
from services.primary.core.context import Context


def describe(context: Context, request: Describe) -> Description:
    """The set in figures, at the log's end."""
    state = context.state
    queues = tuple(
        QueueDescription(
            queue.name,
            queue.id,
            queue.is_durable,
            queue.length,
            queue.bytes,
            context.dispatch.held_count(queue.id) + len(queue.locks),
            len(context.dispatch.consumers(queue.id)),
        )
        for _, queue in sorted(state.queues.by_id.items())
    )
    exchanges = tuple(
        (exchange.name, exchange.kind, exchange.is_durable)
        for _, exchange in sorted(state.exchanges.by_id.items())
    )
    return Description(
        context.epoch,
        context.writer.log.commit_index,
        request.request,
        context.writer.log.end,
        "",
        queues,
        exchanges,
        state.transactions.open_count,
        state.transactions.prepared_count,
        len(state.sessions.by_key),
        context.tx_queues.bytes,
    )


def describe_with_hash(
    context: Context, request: Describe, tell: Callable[[Description], None]
) -> Iterator[int]:
    """The same when its turn comes, with the hash of the state that the figures are of; in steps that say what they cost."""
    description = describe(context, request)
    state_hash = yield from hash_in_steps(context.state.items_in_pieces(bodies=False))
    tell(replace(description, state_hash=state_hash))


def queue_details(context: Context, request: DescribeQueue) -> QueueDetails:
    """What was declared of a queue, whoever may use it, and what is bound to it; NOT_FOUND."""
    head = context.epoch, context.writer.log.commit_index, request.request
    queue = context.state.queues.get(request.queue)
    if queue is None:
        return QueueDetails(*head, ErrorCode.NOT_FOUND)
    exchanges = context.state.exchanges
    bindings = exchanges.bindings_of(queue.id)[: context.settings.described_bindings_max]
    return QueueDetails(
        *head,
        ErrorCode.NONE,
        queue.is_durable,
        bool(queue.definition.exclusive_session),
        queue.definition.is_auto_delete,
        queue.length,
        len(context.dispatch.consumers(queue.id)),
        tuple((exchanges.by_id[one.exchange].name, one.key, one.arguments) for one in bindings),
    )


def exchange_details(context: Context, request: DescribeExchange) -> ExchangeDetails:
    """What was declared of an exchange; NOT_FOUND."""
    head = context.epoch, context.writer.log.commit_index, request.request
    exchange = context.state.exchanges.get(request.exchange)
    if exchange is None:
        return ExchangeDetails(*head, ErrorCode.NOT_FOUND)
    return ExchangeDetails(*head, ErrorCode.NONE, exchange.kind, exchange.is_durable)
