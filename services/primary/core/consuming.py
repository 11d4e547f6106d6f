"""Consumers: how clients open and drain them, and what goes out to them.

Law: what is delivered is committed; what a browser is shown is read at the log's end and told when that is committed, so it is
never part of a transaction (P1, R11). A consumer hears of its end, or of its drain, behind all that was delivered to it.
"""

from functools import partial

from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.queues import Queue
from lockstep.core.requests import DrainConsumer, OpenConsumer
from lockstep.core.server_messages import ConsumerClosed, ConsumerDrained, ConsumerOpened, Deliveries
from services.primary.core.auto_deletion import note_consumer
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.queue_dispatch import Consumer, Delivery
from services.primary.core.queue_view import QueueView
from services.primary.core.read_back import Found


def open_consumer(
    context: Context, streams: ClientStreams, stream: ClientStream, request: OpenConsumer
) -> None:
    """Open it, or say by `ConsumerClosed` why not; raises `LongSelection`."""
    try:
        if request.consumer in stream.consumers:
            raise Rejected(ErrorCode.ALREADY_EXISTS, f"consumer {request.consumer} is open")
        if len(stream.consumers) >= context.settings.stream_consumers_max:
            limit = context.settings.stream_consumers_max
            text = f"a session has at most {limit} consumers"
            raise LimitReached("stream_consumers_max", ErrorCode.TOO_LARGE, text)
        queue = context.queue(request.queue, stream.session)
        _check_alone(context, request, queue)
        selector = context.selectors.compiled(request.selector, context.now) if request.selector else None
    except Rejected as error:
        context.note_refusal(error)
        _closed(streams, stream, request.consumer, error.code, error.message)
        return
    consumer = Consumer(
        stream.number,
        request.consumer,
        stream.session,
        queue.id,
        0,
        request.is_exclusive,
        stream.is_full,
        selector,
        request.is_browser,
        request.after or None,
    )
    stream.consumers[request.consumer] = consumer
    if not consumer.is_browser:
        note_consumer(context, stream.session, queue)
    # Not behind the gate: it opens before its first delivery, and a client opens none on what it was not told of.
    streams.tell_now(stream.number, ConsumerOpened(*streams.head(), request.consumer))
    context.dispatch.add_consumer(consumer)
    context.dispatch.grant(consumer, max(request.credit, 0))


def _check_alone(context: Context, request: OpenConsumer, queue: Queue) -> None:
    if request.is_browser:
        if request.is_exclusive:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "a browser takes nothing: it cannot be exclusive")
        return
    # An exclusive one has no others beside it.
    other = context.dispatch.consumer(queue.id)
    if other is not None and (request.is_exclusive or other.is_exclusive):
        raise Rejected(
            ErrorCode.LOCKED, f"queue {request.queue!r} has an exclusive consumer", queue=request.queue
        )


def drain_consumer(
    context: Context, streams: ClientStreams, stream: ClientStream, request: DrainConsumer
) -> None:
    """Drain it, when everything that was said before has taken effect: it may have brought messages back."""

    def drain() -> None:
        consumer = stream.consumers.get(request.consumer)
        if consumer is not None and streams.by_number.get(stream.number) is stream:
            context.dispatch.drain(consumer)

    streams.when_committed(drain)


def deliver(context: Context, streams: ClientStreams) -> None:
    """Send what may go out now. What has expired goes to nobody, however far behind its records are."""
    wall_ms = context.now.wall_ms
    ended_ms = wall_ms if context.expiry.is_looking or context.expiry.is_due(wall_ms) else 0
    for each in context.dispatch.deliver(context.writer.log.end, ended_ms):
        consumer = each.consumer
        if not isinstance(each, Delivery):
            for _ in range(each.drains):
                drained = ConsumerDrained(*streams.head(), consumer.number, each.credit)
                each.credit = 0
                streams.tell_now(consumer.stream, drained)
        elif consumer.is_awaiting:
            streams.when_committed(partial(_show, context, streams, each))
        else:
            streams.tell_now(consumer.stream, _deliveries(streams, each))
    read_back = context.read_back
    for view in context.dispatch.take_hungry():
        read_back.ask(partial(context.dispatch.wanted, view, read_back.select), partial(_feed, context, view))


def _show(context: Context, streams: ClientStreams, delivery: Delivery) -> None:
    streams.tell_now(delivery.consumer.stream, _deliveries(streams, delivery))
    context.dispatch.was_shown(delivery.consumer)


def _deliveries(streams: ClientStreams, delivery: Delivery) -> Deliveries:
    consumer = delivery.consumer
    return Deliveries(
        *streams.head(), consumer.number, delivery.queue.name, delivery.messages, consumer.is_browser
    )


def _feed(context: Context, view: QueueView, found: Found) -> None:
    context.bodies.bring_back(found)
    context.dispatch.fed(view)


def queue_deleted(streams: ClientStreams, name: str, consumers: list[Consumer]) -> None:
    """A queue is gone: its consumers are closed."""
    for consumer in consumers:
        stream = streams.by_number.get(consumer.stream)
        if stream is not None and stream.consumers.pop(consumer.number, None) is not None:
            _closed(streams, stream, consumer.number, ErrorCode.NOT_FOUND, f"queue {name!r} was deleted")


def _closed(streams: ClientStreams, stream: ClientStream, consumer: int, code: ErrorCode, text: str) -> None:
    streams.tell(stream.number, lambda: ConsumerClosed(*streams.head(), consumer, code, text))
