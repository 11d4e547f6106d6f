"""Requests of clients that are not numbered: consumers, credit, browsing, outcomes, descriptions.

Law: what is read is read at the log's end and told when that is committed; so a reader never sees part of a transaction, and
never something that a successor does not have (R11).
"""

from functools import partial

from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import QueuePosition, SessionKey
from lockstep.core.records import Message, RollbackReason
from lockstep.core.requests import (
    AnyRequest,
    BrokerRequest,
    Browse,
    ChangeSubscription,
    CloseConsumer,
    Describe,
    DescribeExchange,
    DescribeQueue,
    DrainConsumer,
    FindBranches,
    GetOutcome,
    GetTimeout,
    GrantCredit,
    OpenConsumer,
    Recover,
)
from lockstep.core.server_messages import (
    BrowseAnswer,
    DeliveredMessage,
    Description,
    OutcomeAnswer,
    OutcomeState,
)
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DtxBuffer
from services.primary.core import consuming, decisions, describing
from services.primary.core.attachments import Attachments
from services.primary.core.branch_requests import get_timeout, recover
from services.primary.core.client_streams import ClientStream, ClientStreams, CloseHeldBack
from services.primary.core.context import Context
from services.primary.core.queue_dispatch import delivered_messages
from services.primary.core.read_back import Found
from services.primary.core.subscribing import change_subscription, find_branches
from services.primary.core.transacting import append_rollback, open_named

_OUTCOMES = {
    TransactionState.UNKNOWN: OutcomeState.UNKNOWN,
    TransactionState.OPEN: OutcomeState.OPEN,
    TransactionState.PREPARED: OutcomeState.PREPARED,
    TransactionState.COMMITTED: OutcomeState.COMMITTED,
    TransactionState.ROLLED_BACK: OutcomeState.ROLLED_BACK,
    TransactionState.HEURISTICALLY_COMMITTED: OutcomeState.HEURISTICALLY_COMMITTED,
    TransactionState.HEURISTICALLY_ROLLED_BACK: OutcomeState.HEURISTICALLY_ROLLED_BACK,
    TransactionState.EXPIRED: OutcomeState.EXPIRED,
}

_QUESTIONS = (Browse, GetOutcome, Describe, DescribeQueue, DescribeExchange, Recover, FindBranches)
"""Whose answers wait, and are limited with that."""


def handle_request(
    context: Context,
    streams: ClientStreams,
    attachments: Attachments,
    stream: ClientStream,
    request: AnyRequest | BrokerRequest,
) -> None:
    """Do what a stream with a session asks for; what is delivered must belong to somebody who can give it back."""
    if context.state.sessions.get(stream.session) is None:
        streams.tell_no_session(stream.number)
        return
    is_question = isinstance(request, _QUESTIONS)
    if is_question and stream.questions_waiting >= context.settings.questions_waiting_max:
        text = f"{stream.questions_waiting} requests wait, questions_waiting_max is {context.settings.questions_waiting_max}"
        context.note_refusal(LimitReached("questions_waiting_max", ErrorCode.UNAVAILABLE, text))
        streams.tell_now(stream.number, streams.ended(ErrorCode.UNAVAILABLE, text))
        streams.close(stream.number)
        return
    match request:
        case OpenConsumer():
            consuming.open_consumer(context, streams, stream, request)
        case GrantCredit():
            consumer = stream.consumers.get(request.consumer)
            if consumer is not None:
                context.dispatch.grant(consumer, max(request.credit, 0))
        case DrainConsumer():
            consuming.drain_consumer(context, streams, stream, request)
        case CloseConsumer():
            closing = stream.consumers.pop(request.consumer, None)
            if closing is not None:
                context.dispatch.remove_consumer(closing)
                not_taken_to = request.behind if isinstance(request, CloseHeldBack) else stream.not_taken_to
                attachments.auto_deletion.consumer_left(closing, max(stream.dropped_to, not_taken_to))
        case Browse():
            _browse(context, streams, stream, request)
        case GetOutcome():
            _get_outcome(context, streams, stream, request)
        case Describe():
            _describe(context, streams, stream, request)
        case DescribeQueue():
            queue_details = describing.queue_details(context, request)
            streams.tell_answer(stream, lambda: queue_details)
        case DescribeExchange():
            exchange_details = describing.exchange_details(context, request)
            streams.tell_answer(stream, lambda: exchange_details)
        case Recover():
            recover(context, streams, stream, request)
        case ChangeSubscription():
            change_subscription(context, streams, stream, request)
        case FindBranches():
            find_branches(context, streams, stream, request)
        case GetTimeout():
            get_timeout(context, streams, stream, request)
        case _:
            raise AssertionError(request)


def _describe(context: Context, streams: ClientStreams, stream: ClientStream, request: Describe) -> None:
    stream.questions_waiting += 1

    def tell(description: Description) -> None:
        stream.questions_waiting -= 1
        if streams.by_number.get(stream.number) is stream:
            streams.tell_answer(stream, lambda: description)

    work = describing.describe(context, request, tell)
    if request.with_state_hash:
        # Beside others: it takes long.
        context.pieces.begin(work)
    else:
        context.pieces.begin_in_turn(work)
    context.pieces.go_on()


def _browse(context: Context, streams: ClientStreams, stream: ClientStream, request: Browse) -> None:
    settings = context.settings
    code, text, is_end = ErrorCode.NONE, "", True
    messages: tuple[DeliveredMessage, ...] = ()
    found: list[tuple[QueuePosition, Message]] = []
    try:
        queue = context.queue(request.queue, stream.session)
        if stream.browses_waiting >= settings.browses_waiting_max:
            raise LimitReached(
                "browses_waiting_max",
                ErrorCode.UNAVAILABLE,
                f"{stream.browses_waiting} browses wait, browses_waiting_max is {settings.browses_waiting_max}",
                queue=request.queue,
                browses_waiting_max=settings.browses_waiting_max,
            )
    except Rejected as error:
        context.note_refusal(error)
        code, text = error.code, error.message
    else:
        limit = min(max(request.limit, 1), settings.browse_messages_max)
        size = 0
        positions = queue.positions(request.after + 1 if request.after else 0, limit + 1)
        whole = queue.messages(positions[:limit])
        if positions and not whole:
            _browse_later(context, streams, stream, request, positions[:limit])
            return
        for position, message in zip(positions[:limit], whole, strict=False):
            size += len(message.body) + len(message.properties)
            if found and size > settings.browse_bytes_max:
                break
            found.append((position, message))
        is_end = len(found) == len(positions)
        messages = delivered_messages(queue, found)
    streams.tell_answer(
        stream,
        lambda: BrowseAnswer(*streams.head(), request.request, code, text, messages, is_end),
        is_browse=True,
    )


def _browse_later(
    context: Context,
    streams: ClientStreams,
    stream: ClientStream,
    request: Browse,
    positions: list[QueuePosition],
) -> None:
    """The first body is away: browse again when it is here, with those behind it."""
    read_back = context.read_back
    ids = context.state.queues.by_name[request.queue].message_ids(positions)

    def again(found: Found) -> None:
        context.bodies.bring_back(found)
        if streams.by_number.get(stream.number) is not stream:
            return
        if context.state.sessions.get(stream.session) is None:
            streams.tell_no_session(stream.number)
        else:
            _browse(context, streams, stream, request)

    if read_back.is_full:
        text = "too many readers of long queues"
        context.note_refusal(LimitReached("readings_waiting_max", ErrorCode.UNAVAILABLE, text))
        streams.tell(
            stream.number,
            lambda: BrowseAnswer(
                *streams.head(), request.request, ErrorCode.UNAVAILABLE, text, (), is_end=False
            ),
        )
    else:
        read_back.ask(lambda: read_back.select(ids), again)


def _get_outcome(context: Context, streams: ClientStreams, stream: ClientStream, request: GetOutcome) -> None:
    key = request.transaction
    open_named(context, key)
    outcome = context.state.outcome(key)
    if outcome.state is TransactionState.OPEN and request.fence and _may_fence(context, stream, request):
        append_rollback(context, key, RollbackReason.FENCED)
        outcome = context.state.outcome(key)
    if outcome.state is TransactionState.PREPARED:
        stream.questions_waiting += 1
        if decisions.ask_for(context, key, partial(_tell_decided, context, streams, stream, request)):
            return
        stream.questions_waiting -= 1
    _tell_outcome(context, streams, stream, request)


def _may_fence(context: Context, stream: ClientStream, request: GetOutcome) -> bool:
    """Whether the transaction, which is open, is of whoever asks: of the session that asks, or of one whose id he knows."""
    if request.is_permitted:
        return True
    buffer = context.state.transactions.get(request.transaction)
    assert buffer is not None, "it is open"
    owners = {buffer.session}
    if request.transaction in context.progress:
        owners.add(context.progress[request.transaction].session)
    if isinstance(buffer, DtxBuffer):
        owners.update(buffer.associations)
    owners.discard(SessionKey(0))
    if stream.session in owners:
        return True
    sessions = (context.state.sessions.get(key) for key in owners)
    return any(session is not None and session.id in request.sessions for session in sessions)


def _tell_decided(
    context: Context, streams: ClientStreams, stream: ClientStream, request: GetOutcome
) -> None:
    stream.questions_waiting -= 1
    _tell_outcome(context, streams, stream, request)


def _tell_outcome(
    context: Context, streams: ClientStreams, stream: ClientStream, request: GetOutcome
) -> None:
    """At the log's end."""
    outcome = context.state.outcome(request.transaction)
    state = _OUTCOMES[outcome.state]
    reason = 0 if outcome.had_nothing_to_commit else outcome.reason
    streams.tell_answer(
        stream,
        lambda: OutcomeAnswer(*streams.head(), request.request, request.transaction, state, reason),
    )
