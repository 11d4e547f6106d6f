"""Events one by one, out of batches that are column by column: for people and small programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb

_KINDS = {int(number): name.removeprefix("KIND_").lower() for name, number in pb.EventBatch.Kind.items()}


@dataclass(frozen=True, slots=True)
class Event:
    """One durable effect of a committed transaction, or the rollback of one (DESIGN 7)."""

    resource_set: str
    index: int
    """Place in the set's log of the record that committed it: the same for all events of a transaction."""
    commit_time: datetime
    """Never falls within a resource set."""
    transaction: str
    """set/index.epoch; "": a command outside any transaction."""
    xid: str
    """Name of the branch, as `lockstep tx` shows it; "": none."""
    place: int
    """Among the transaction's events in this set, from 0."""
    events: int
    """Of the transaction in this set."""
    kind: str
    """enqueue, dequeue, expire, dead_letter, declare, delete or rollback; of a later version its number, in digits."""
    resource: str
    """Queue or exchange."""
    position: tuple[int, int]
    """(index, ordinal): names a place in the queue for ever; (0, 0): there is no message."""
    source: tuple[int, int]
    """Of a message that was dead-lettered into this queue: its place in the queue that it left; else (0, 0)."""
    properties: bytes
    body: bytes
    """b"" where the event carries no content: only messages that were published have it."""


def events_in(batch: pb.EventBatch) -> Iterator[Event]:
    """The events of a batch, in order."""
    columns, number = batch.events, 0
    kinds, resources = columns.kinds, columns.resources
    properties_at = body_at = 0
    for transaction in batch.transactions:
        commit_time = datetime.fromtimestamp(transaction.commit_time_ms / 1000, UTC)
        xid = ""
        if transaction.xid_format or transaction.global_id:
            xid = str(Xid(transaction.xid_format, transaction.global_id, transaction.branch_id))
        for place in range(transaction.first_place, transaction.first_place + transaction.events_here):
            properties_end = properties_at + _at(columns.properties_lengths, number)
            body_end = body_at + _at(columns.body_lengths, number)
            yield Event(
                batch.end.resource_set,
                transaction.index,
                commit_time,
                transaction.transaction_id,
                xid,
                place,
                transaction.events,
                _KINDS.get(kinds[number], str(kinds[number])),
                batch.resources[_at(resources, number)].name,
                (_at(columns.position_indexes, number), _at(columns.position_ordinals, number)),
                (_at(columns.source_indexes, number), _at(columns.source_ordinals, number)),
                columns.properties[properties_at:properties_end],
                columns.bodies[body_at:body_end],
            )
            properties_at, body_at = properties_end, body_end
            number += 1


def _at(column: Sequence[int], number: int) -> int:
    """A column without elements stands for zeros."""
    return column[number] if column else 0
