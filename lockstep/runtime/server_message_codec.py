"""One message of a primary to a client on the wire. Answers and deliveries are columns, however many they are."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from lockstep.core import server_messages as sm
from lockstep.core.asides import Aside
from lockstep.core.deaths import Death
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SessionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.wire_numbers import error_code
from lockstep.runtime.bodies_apart import fill_bodies, messages_with_bodies
from lockstep.runtime.branch_message_codec import (
    decode_recovered,
    decode_timeout,
    encode_recovered,
    encode_timeout,
)
from lockstep.runtime.client_message_codec import invalid
from lockstep.runtime.columns import expand, pack
from lockstep.wire.v1 import session_pb2 as pb

_Wire = pb.ServerMessage


def encode_server_message(message: sm.AnyServerMessage, wire: pb.ServerMessage) -> Sequence[bytes] | None:
    """Fills `wire`, which is new, without epoch and commit index, which `session_codec` puts where they belong; returns the
    bodies that it is left without, if they are big.

    What is common, or has bodies, is filled in where it stands: what is built apart is copied when it is put there.
    """
    match message:
        case sm.Answers():
            _fill_answers(message.answers, wire.answers)
            return None
        case sm.Deliveries():
            wire.deliveries.consumer = message.consumer
            wire.deliveries.queue = message.queue
            wire.deliveries.are_copies = message.are_copies
            return _fill_batch(message.messages, wire.deliveries.batch)
        case sm.BrowseAnswer(_, _, request, code, text, messages, is_end):
            wire.browse_answer.request = request
            wire.browse_answer.code = code
            wire.browse_answer.message = text
            wire.browse_answer.is_end = is_end
            return _fill_batch(messages, wire.browse_answer.batch)
        case sm.HeartbeatAnswered():
            answered = _Wire.HeartbeatAnswered(pause_ms=message.pause_ms, next_number=message.next_number)
            built = _Wire(heartbeat_answered=answered)
        case sm.PushedBack(_, _, number, code, text):
            built = _Wire(pushed_back=_Wire.PushedBack(number=number, code=code, message=text))
        case sm.SessionAttached(
            _, _, session, session_epoch, next_number, candidates, kept_from, takes_last_publish
        ):
            attached = _Wire.Attached(
                session=session,
                session_epoch=session_epoch,
                next_number=next_number,
                candidates=candidates,
                kept_from=kept_from,
                takes_last_publish=takes_last_publish,
            )
            built = _Wire(attached=attached)
        case sm.AttachRefused(_, _, code, text, candidates):
            built = _Wire(attach_refused=_Wire.AttachRefused(code=code, message=text, candidates=candidates))
        case sm.ConsumerOpened(_, _, consumer):
            built = _Wire(consumer_opened=_Wire.ConsumerOpened(consumer=consumer))
        case sm.ConsumerDrained(_, _, consumer, credit):
            built = _Wire(consumer_drained=_Wire.ConsumerDrained(consumer=consumer, credit=credit))
        case sm.ConsumerClosed(_, _, consumer, code, text):
            built = _Wire(consumer_closed=_Wire.ConsumerClosed(consumer=consumer, code=code, message=text))
        case sm.OutcomeAnswer(_, _, request, (index, epoch), state, reason):
            name = pb.TransactionName(index=index, epoch=epoch)
            outcome = _Wire.OutcomeAnswer(request=request, transaction=name, state=state, reason=reason)
            built = _Wire(outcome_answer=outcome)
        case sm.Description():
            built = _Wire(description=_description(message))
        case sm.QueueDetails():
            built = _Wire(queue_details=_queue_details(message))
        case sm.ExchangeDetails(_, _, request, code, kind, is_durable):
            exchange = _Wire.ExchangeDetails(request=request, code=code, kind=kind, is_durable=is_durable)
            built = _Wire(exchange_details=exchange)
        case sm.Recovered():
            built = encode_recovered(message)
        case sm.TimeoutAnswer():
            built = encode_timeout(message)
        case sm.CandidatesChanged(_, _, candidates):
            built = _Wire(candidates_changed=_Wire.CandidatesChanged(candidates=candidates))
        case sm.SessionEnded(_, _, code, text):
            built = _Wire(ended=_Wire.Ended(code=code, message=text))
        case _:
            assert_never(message)
    wire.MergeFrom(built)
    return None


def _fill_answers(answers: Sequence[sm.CommandAnswered], wire: pb.ServerMessage.Answers) -> None:
    if len(answers) == 1:
        # Nearly always: the same columns.
        [answer] = answers
        wire.numbers.append(answer.number)
        if answer.value:
            wire.values.append(answer.value)
        if answer.code:
            wire.codes.append(answer.code)
        if answer.message:
            wire.messages.append(answer.message)
        return
    wire.numbers.extend([answer.number for answer in answers])
    wire.values.extend(pack([answer.value for answer in answers], 0))
    wire.codes.extend(pack([int(answer.code) for answer in answers], 0))
    wire.messages.extend(pack([answer.message for answer in answers], ""))


def _fill_batch(
    messages: Sequence[sm.DeliveredMessage], batch: pb.ServerMessage.Batch
) -> Sequence[bytes] | None:
    """Returns the bodies that it is left without, if they are big."""
    # The interpreter reads an attribute in a quarter of the instructions that an `attrgetter` takes.
    batch.positions.extend([message.position for message in messages])
    apart = fill_bodies([message.body for message in messages], batch.bodies)
    if _are_plain(messages):
        # Nearly always: the same columns.
        first = messages[0]
        if first.properties:
            batch.properties.append(first.properties)
        if first.is_durable:
            batch.are_durable.append(True)
        return apart
    batch.properties.extend(pack([message.properties for message in messages], b""))
    batch.delivery_counts.extend(pack([message.delivery_count for message in messages], 0))
    batch.expire_ms.extend(pack([message.expires_ms for message in messages], 0))
    batch.are_durable.extend(pack([message.is_durable for message in messages], False))
    batch.asides.extend(
        [
            _Wire.Aside(
                place=place,
                deaths=[_death(death) for death in message.aside.deaths],
                annotations=message.aside.annotations,
                priority=message.aside.priority if message.aside.priority != PRIORITY_DEFAULT else None,
            )
            for place, message in enumerate(messages)
            if message.aside is not None
        ]
    )
    return apart


def _are_plain(messages: Sequence[sm.DeliveredMessage]) -> bool:
    """Whether they differ in nothing but positions and bodies, were not delivered before, do not expire, and nothing is said
    aside; not so of none.
    """
    if not messages:
        return False
    properties, is_durable = messages[0].properties, messages[0].is_durable
    for message in messages:
        if (
            message.delivery_count
            or message.expires_ms
            or message.aside is not None
            or message.is_durable is not is_durable
            or message.properties != properties
        ):
            return False
    return True


def _death(death: Death) -> pb.ServerMessage.Death:
    return _Wire.Death(
        queue=death.queue,
        reason=death.reason,
        count=death.count,
        first_ms=death.first_ms,
        last_ms=death.last_ms,
    )


def _description(message: sm.Description) -> pb.ServerMessage.Description:
    return _Wire.Description(
        request=message.request,
        log_end=message.log_end,
        state_hash=message.state_hash,
        queues=[
            _Wire.Queue(
                name=queue.name,
                queue_id=queue.queue_id,
                is_durable=queue.is_durable,
                length=queue.length,
                bytes=queue.bytes,
                held=queue.held,
                consumers=queue.consumers,
            )
            for queue in message.queues
        ],
        exchanges=[
            _Wire.Exchange(name=name, kind=kind, is_durable=is_durable)
            for name, kind, is_durable in message.exchanges
        ],
        open_transactions=message.open_transactions,
        prepared_transactions=message.prepared_transactions,
        sessions=message.sessions,
        tx_queue_bytes=message.tx_queue_bytes,
        next_page_token=message.next_page_token,
    )


def _queue_details(message: sm.QueueDetails) -> pb.ServerMessage.QueueDetails:
    return _Wire.QueueDetails(
        request=message.request,
        code=message.code,
        is_durable=message.is_durable,
        is_exclusive=message.is_exclusive,
        is_auto_delete=message.is_auto_delete,
        length=message.length,
        consumers=message.consumers,
        bindings=[
            _Wire.Binding(
                exchange=exchange,
                key=key,
                arguments=[pb.Pair(name=name, value=value) for name, value in arguments],
            )
            for exchange, key, arguments in message.bindings
        ],
    )


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_server_message(
    epoch: Epoch, commit_index: LogIndex, message: pb.ServerMessage
) -> sm.AnyServerMessage:
    """Raises `Rejected` (INVALID_ARGUMENT) for what is no message of a primary."""
    kind = message.WhichOneof("message")
    if kind is None:
        raise invalid("a message of a kind that is not known here")
    return _DECODERS[kind](epoch, commit_index, message)


def with_bodies(message: sm.AnyServerMessage, bodies: Mapping[int, bytes]) -> sm.AnyServerMessage:
    """The same deliveries, or answer to a browse, with these bodies at their places among its messages."""
    assert isinstance(message, sm.Deliveries | sm.BrowseAnswer), f"{type(message).__name__} has no bodies"
    return replace(message, messages=messages_with_bodies(message.messages, bodies))


def _decode_answers(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.Answers:
    answers = wire.answers
    numbers, values, messages = answers.numbers, answers.values, answers.messages
    codes = [error_code(code) for code in answers.codes] if answers.codes else []
    count = len(numbers)
    if count == 1 and len(codes) <= 1 and len(messages) <= 1 and len(values) <= 1:
        # Nearly always: the same columns.
        code, message = codes[0] if codes else ErrorCode.NONE, messages[0] if messages else ""
        answer = sm.CommandAnswered(numbers[0], code, message, values[0] if values else 0)
        return sm.Answers(epoch, commit_index, (answer,))
    answered = map(
        sm.CommandAnswered,
        numbers,
        expand(codes, count, ErrorCode.NONE, "codes"),
        expand(messages, count, "", "messages"),
        expand(values, count, 0, "values"),
    )
    return sm.Answers(epoch, commit_index, tuple(answered))


def _decode_batch(batch: pb.ServerMessage.Batch) -> tuple[sm.DeliveredMessage, ...]:
    count = len(batch.positions)
    if len(batch.bodies) != count:
        raise invalid(f"{count} positions for {len(batch.bodies)} bodies")
    columns: list[Iterable[Any]] = [
        batch.positions,  # As they are: to name their type here would be a call more for each message.
        expand(batch.properties, count, b"", "properties"),
        batch.bodies,
        expand(batch.delivery_counts, count, 0, "delivery_counts"),
        expand(batch.expire_ms, count, 0, "expire_ms"),
        expand(batch.are_durable, count, False, "are_durable"),
    ]
    if batch.asides:
        columns.append(_decode_asides(batch.asides, count))
    return tuple(map(sm.DeliveredMessage, *columns))


def _decode_asides(asides: Iterable[pb.ServerMessage.Aside], count: int) -> list[Aside | None]:
    found: list[Aside | None] = [None] * count
    for aside in asides:
        if aside.place >= count:
            raise invalid(f"something is said of message {aside.place} of {count}")
        deaths = tuple(
            Death(death.queue, death.reason, death.count, death.first_ms, death.last_ms)
            for death in aside.deaths
        )
        priority = aside.priority if aside.HasField("priority") else PRIORITY_DEFAULT
        found[aside.place] = Aside(deaths, aside.annotations, priority)
    return found


def _decode_deliveries(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.Deliveries:
    deliveries = wire.deliveries
    return sm.Deliveries(
        epoch,
        commit_index,
        deliveries.consumer,
        deliveries.queue,
        _decode_batch(deliveries.batch),
        deliveries.are_copies,
    )


def _decode_attached(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.SessionAttached:
    attached = wire.attached
    return sm.SessionAttached(
        epoch,
        commit_index,
        SessionKey(attached.session),
        Epoch(attached.session_epoch),
        attached.next_number,
        tuple(attached.candidates),
        Epoch(attached.kept_from),
        attached.takes_last_publish,
    )


def _decode_browse(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.BrowseAnswer:
    answer = wire.browse_answer
    messages = _decode_batch(answer.batch)
    return sm.BrowseAnswer(
        epoch, commit_index, answer.request, error_code(answer.code), answer.message, messages, answer.is_end
    )


def _decode_outcome(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.OutcomeAnswer:
    answer = wire.outcome_answer
    key = LogIndex(answer.transaction.index), Epoch(answer.transaction.epoch)
    return sm.OutcomeAnswer(epoch, commit_index, answer.request, key, answer.state, answer.reason)


def _decode_description(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.Description:
    description = wire.description
    return sm.Description(
        epoch,
        commit_index,
        description.request,
        LogIndex(description.log_end),
        description.state_hash,
        tuple(
            sm.QueueDescription(
                queue.name,
                queue.queue_id,
                queue.is_durable,
                queue.length,
                queue.bytes,
                queue.held,
                queue.consumers,
            )
            for queue in description.queues
        ),
        tuple((exchange.name, exchange.kind, exchange.is_durable) for exchange in description.exchanges),
        description.open_transactions,
        description.prepared_transactions,
        description.sessions,
        description.tx_queue_bytes,
        description.next_page_token,
    )


def _decode_queue_details(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.QueueDetails:
    details = wire.queue_details
    return sm.QueueDetails(
        epoch,
        commit_index,
        details.request,
        error_code(details.code),
        details.is_durable,
        details.is_exclusive,
        details.is_auto_delete,
        details.length,
        details.consumers,
        tuple(
            (binding.exchange, binding.key, tuple((pair.name, pair.value) for pair in binding.arguments))
            for binding in details.bindings
        ),
    )


_DECODERS: dict[str, Callable[[Epoch, LogIndex, pb.ServerMessage], sm.AnyServerMessage]] = {
    "answers": _decode_answers,
    "deliveries": _decode_deliveries,
    "heartbeat_answered": lambda epoch, commit_index, wire: sm.HeartbeatAnswered(
        epoch, commit_index, wire.heartbeat_answered.pause_ms, wire.heartbeat_answered.next_number
    ),
    "pushed_back": lambda epoch, commit_index, wire: sm.PushedBack(
        epoch,
        commit_index,
        wire.pushed_back.number,
        error_code(wire.pushed_back.code),
        wire.pushed_back.message,
    ),
    "attached": _decode_attached,
    "attach_refused": lambda epoch, commit_index, wire: sm.AttachRefused(
        epoch,
        commit_index,
        error_code(wire.attach_refused.code),
        wire.attach_refused.message,
        tuple(wire.attach_refused.candidates),
    ),
    "consumer_opened": lambda epoch, commit_index, wire: sm.ConsumerOpened(
        epoch, commit_index, wire.consumer_opened.consumer
    ),
    "consumer_drained": lambda epoch, commit_index, wire: sm.ConsumerDrained(
        epoch, commit_index, wire.consumer_drained.consumer, wire.consumer_drained.credit
    ),
    "consumer_closed": lambda epoch, commit_index, wire: sm.ConsumerClosed(
        epoch,
        commit_index,
        wire.consumer_closed.consumer,
        error_code(wire.consumer_closed.code),
        wire.consumer_closed.message,
    ),
    "browse_answer": _decode_browse,
    "outcome_answer": _decode_outcome,
    "description": _decode_description,
    "queue_details": _decode_queue_details,
    "exchange_details": lambda epoch, commit_index, wire: sm.ExchangeDetails(
        epoch,
        commit_index,
        wire.exchange_details.request,
        error_code(wire.exchange_details.code),
        wire.exchange_details.kind,
        wire.exchange_details.is_durable,
    ),
    "recovered": decode_recovered,
    "timeout_answer": decode_timeout,
    "candidates_changed": lambda epoch, commit_index, wire: sm.CandidatesChanged(
        epoch, commit_index, tuple(wire.candidates_changed.candidates)
    ),
    "ended": lambda epoch, commit_index, wire: sm.SessionEnded(
        epoch, commit_index, error_code(wire.ended.code), wire.ended.message
    ),
}
