"""Descriptions: the set in figures, and what was declared of a queue or an exchange.

Law: each is made at the log's end, and told when that is committed (R11). A set may have very many queues: they are told by
pages, in the order in which they were declared, and a page is looked for in pieces.
"""

from collections.abc import Callable, Generator, Iterator, Sequence

from msgspec.structs import replace

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import ExchangeId, QueueId
from lockstep.core.queues import Queue
from lockstep.core.requests import Describe, DescribeExchange, DescribeQueue
from lockstep.core.server_messages import Description, ExchangeDetails, QueueDescription, QueueDetails
from lockstep.core.state_hash import hash_in_steps
from services.primary.core.context import Context

PAGE_MAX = 5000
"""Queues and exchanges on one page: to write them down takes some milliseconds."""
_LOOKED_AT = 2000
"""Queues or exchanges in one step of the search for a page."""
_LOOKED_AT_COST = 100
_DESCRIBED_COST = 1


def describe(context: Context, request: Describe, tell: Callable[[Description], None]) -> Iterator[int]:
    """A page of the set in figures, and the hash of the state that they are of if that is asked for, when its turn comes; in
    steps that say what they cost.
    """
    size = min(request.page_size or PAGE_MAX, PAGE_MAX)
    page = yield from _first_behind(context, request.page_token, size + 1)
    if request.with_state_hash:
        yield from context.state.clearing.until_cleared()
    next_token = page[size - 1] if len(page) > size else 0
    description = _described(context, request.request, page[:size], next_token)
    if request.with_state_hash:
        state_hash = yield from hash_in_steps(context.state.items_in_pieces(bodies=False))
        description = replace(description, state_hash=state_hash)
    tell(description)
    yield _DESCRIBED_COST * len(page)


def _first_behind(context: Context, after: int, count: int) -> Generator[int, None, list[int]]:
    """The first queues and exchanges behind this one, by id, `count` at most: one record declares one of either."""
    state = context.state
    found: list[int] = []
    for ids in (list(state.queues.by_id), list(state.exchanges.by_id)):
        for begin in range(0, len(ids), _LOOKED_AT):
            found += [number for number in ids[begin : begin + _LOOKED_AT] if number > after]
            found.sort()
            del found[count:]
            yield _LOOKED_AT_COST
    return found


def _described(context: Context, request: int, ids: Sequence[int], next_page_token: int) -> Description:
    """At the log's end, with those of these that are left."""
    state = context.state
    queues, exchanges = state.queues.by_id, state.exchanges.by_id
    return Description(
        context.epoch,
        context.writer.log.commit_index,
        request,
        context.writer.log.end,
        "",
        tuple(_queue(context, queue) for number in ids if (queue := queues.get(QueueId(number)))),
        tuple(
            (exchange.name, exchange.kind, exchange.is_durable)
            for number in ids
            if (exchange := exchanges.get(ExchangeId(number)))
        ),
        state.transactions.open_count,
        state.transactions.prepared_count,
        len(state.sessions.by_key),
        context.tx_queues.bytes,
        next_page_token,
    )


def _queue(context: Context, queue: Queue) -> QueueDescription:
    held = context.dispatch.held_count(queue.id) + len(queue.locks)
    consumers = context.dispatch.consumer_count(queue.id)
    return QueueDescription(
        queue.name, queue.id, queue.is_durable, queue.length, queue.bytes, held, consumers
    )


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
        context.dispatch.consumer_count(queue.id),
        tuple((exchanges.by_id[one.exchange].name, one.key, one.arguments) for one in bindings),
    )


def exchange_details(context: Context, request: DescribeExchange) -> ExchangeDetails:
    """What was declared of an exchange; NOT_FOUND."""
    head = context.epoch, context.writer.log.commit_index, request.request
    exchange = context.state.exchanges.get(request.exchange)
    if exchange is None:
        return ExchangeDetails(*head, ErrorCode.NOT_FOUND)
    return ExchangeDetails(*head, ErrorCode.NONE, exchange.kind, exchange.is_durable)
