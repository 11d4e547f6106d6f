"""The requests of the Transactions service as commands, and what is wrong with them."""

from collections.abc import Iterable, Sequence

from lockstep.core.commands import Disposition, OutgoingMessage, PublishCommand, SettleCommand
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition, SetName, TransactionKey, parse_transaction_id
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.server_messages import DeliveredMessage
from lockstep.runtime.client_message_codec import (
    COUNT_MAX,
    check_count,
    checked_priority,
    invalid,
    span,
)
from lockstep.wire.v1 import transactions_pb2 as pb


def parse_name(transaction_id: str) -> tuple[SetName, TransactionKey]:
    """Raises `Rejected` INVALID_ARGUMENT for what is no transaction id."""
    try:
        return parse_transaction_id(transaction_id)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), transaction=transaction_id[:80]) from error


def publish_command(request: pb.PublishRequest, key: TransactionKey) -> PublishCommand:
    """Raises `Rejected` INVALID_ARGUMENT."""
    if not request.messages:
        raise invalid("a publish without messages")
    check_count(len(request.messages), COUNT_MAX, "messages of a publish")
    messages = tuple(
        OutgoingMessage(
            message.properties,
            message.body,
            not message.is_transient,
            span(message.ttl_ms),
            tuple(sorted(message.headers.items())),
            checked_priority(message.priority) if message.HasField("priority") else PRIORITY_DEFAULT,
        )
        for message in request.messages
    )
    sequence = _sequence(request.sequence)
    return PublishCommand(0, request.exchange, request.routing_key, messages, key, sequence)


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
