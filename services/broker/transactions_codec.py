"""The requests of the Transactions service as commands, and what is wrong with them."""

from collections.abc import Generator, Iterable, Sequence

from lockstep.core.commands import Disposition, OutgoingMessage, PublishCommand, SettleCommand
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition, SetName, TransactionKey, parse_transaction_id
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.server_messages import DeliveredMessage
from lockstep.runtime.bodies_apart import BodiesApart, Found
from lockstep.runtime.client_message_codec import (
    COUNT_MAX,
    check_count,
    checked_priority,
    invalid,
    span,
)
from lockstep.runtime.wire import Serialized
from lockstep.wire.v1 import transactions_pb2 as pb

PUBLISH_BODIES = BodiesApart(pb.PublishRequest.DESCRIPTOR, "messages", ("body",))
NO_BODIES: Found = {}
_MESSAGES_A_STEP = 200


def parse_name(transaction_id: str) -> tuple[SetName, TransactionKey]:
    """Raises `Rejected` INVALID_ARGUMENT for what is no transaction id."""
    try:
        return parse_transaction_id(transaction_id)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), transaction=transaction_id[:80]) from error


def publish_command(
    request: pb.PublishRequest, key: TransactionKey, bodies: Found = NO_BODIES
) -> Generator[None, None, PublishCommand]:
    """In steps (`in_turns`). `bodies`: those that the request is without. Raises `Rejected` INVALID_ARGUMENT."""
    if not request.messages:
        raise invalid("a publish without messages")
    check_count(len(request.messages), COUNT_MAX, "messages of a publish")
    messages: list[OutgoingMessage] = []
    for place, message in enumerate(request.messages):
        outgoing = OutgoingMessage(
            message.properties,
            bodies[place][0] if place in bodies else message.body,
            not message.is_transient,
            span(message.ttl_ms),
            tuple(sorted(message.headers.items())),
            checked_priority(message.priority) if message.HasField("priority") else PRIORITY_DEFAULT,
        )
        messages.append(outgoing)
        if len(messages) % _MESSAGES_A_STEP == 0:
            yield
    sequence = _sequence(request.sequence)
    return PublishCommand(0, request.exchange, request.routing_key, tuple(messages), key, sequence)


def forwarded_publish(request: pb.PublishRequest, bodies: Found) -> Generator[None, None, Serialized]:
    """The request, serialised as one that is forwarded, with the bodies that it is without, in steps (`in_turns`). It is of no
    use behind that; what a later version says in it is passed on.
    """
    pieces: list[bytes] = []
    for first in range(0, len(request.messages), _MESSAGES_A_STEP):
        part = pb.PublishRequest(messages=request.messages[first : first + _MESSAGES_A_STEP])
        apart = {
            place: (bodies[first + place][0],)
            for place in range(len(part.messages))
            if first + place in bodies
        }
        serialized = PUBLISH_BODIES.serialize(part, apart)
        pieces += (serialized,) if isinstance(serialized, bytes) else serialized
        yield
    del request.messages[:]
    request.is_forwarded = True
    return (request.SerializeToString(), *pieces)


def accept_command(request: pb.AcceptRequest, key: TransactionKey) -> SettleCommand:
    """Raises `Rejected` INVALID_ARGUMENT."""
    return SettleCommand(
        0,
        request.queue,
        Epoch(request.delivery_epoch),
        _positions(request.positions),
        Disposition.ACCEPT,
        key,
        _sequence(request.sequence),
    )


def settle_command(request: pb.SettleRequest) -> SettleCommand:
    """Raises `Rejected` INVALID_ARGUMENT."""
    if not Disposition.ACCEPT <= request.disposition <= Disposition.REJECT:
        raise invalid(f"disposition {request.disposition} is not known here")
    return SettleCommand(
        0,
        request.queue,
        Epoch(request.delivery_epoch),
        _positions(request.positions),
        int(request.disposition),
    )


def acquired_messages(
    messages: Iterable[DeliveredMessage],
) -> list[pb.AcquireResponse.AcquiredMessage]:
    return [
        pb.AcquireResponse.AcquiredMessage(
            position=message.position,
            body=message.body,
            properties=message.properties,
            delivery_count=message.delivery_count,
            expires_ms=message.expires_ms,
            is_durable=message.is_durable,
            deaths=[
                pb.AcquireResponse.Death(
                    queue=death.queue,
                    reason=death.reason,
                    count=death.count,
                    first_ms=death.first_ms,
                    last_ms=death.last_ms,
                )
                for death in message.deaths
            ],
            annotations=message.annotations,
            priority=message.priority if message.priority != PRIORITY_DEFAULT else None,
        )
        for message in messages
    ]


def _sequence(sequence: int) -> int:
    if sequence == 0:
        raise invalid("operations of a transaction are numbered from 1")
    return sequence


def _positions(positions: Sequence[int]) -> tuple[QueuePosition, ...]:
    check_count(len(positions), COUNT_MAX, "positions of a settle")
    found = tuple(QueuePosition(position) for position in positions)
    if not found:
        raise invalid("no positions are named")
    if len(set(found)) != len(found):
        raise invalid("a position is named twice")
    return found
