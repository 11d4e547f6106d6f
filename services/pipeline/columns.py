"""An event batch of the wire as an Arrow record batch with the columns of `schema.py`.

Law: nothing is done event by event in Python. What belongs to a transaction is made once for each and repeated by Arrow; contents
are not copied: lengths become offsets, and the buffer of the message is the buffer of the column.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core.branch_names import FORMAT_ID
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.pipeline.schema import COLUMNS, KINDS, REASONS, ROLLBACK_REASONS

_MICROSECONDS = 1000
_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
ARROW_SCHEMA = pa.schema([pa.field(name, _TYPES[kind]) for name, kind in COLUMNS])
"""To the letter what Spark makes of `SCHEMA`: a record batch of another one is refused."""

Integers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def as_record_batch(batch: pb.EventBatch, *, with_content: bool = True) -> pa.RecordBatch:
    """All events of a batch, in order. `with_content`: it was read with properties and bodies."""
    events, transactions = batch.events, batch.transactions
    count = len(events.kinds)
    resource_set = batch.end.resource_set
    here = _integers((one.events_here for one in transactions), len(transactions))
    assert int(here.sum()) == count, "each event belongs to one transaction of its batch"
    of_transaction = np.repeat(np.arange(len(transactions)), here)
    columns = {
        **_of_transactions(resource_set, transactions, pa.array(of_transaction)),
        **_of_resources(batch, count),
        **_of_messages(resource_set, events, count),
        **_of_contents(events, count, with_content),
        "resource_set": _repeated(resource_set, count),
        "place": pa.array(_places(transactions, here), pa.int32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)


def _of_transactions(
    resource_set: str, transactions: Sequence[pb.EventBatch.Transaction], places: pa.Array
) -> dict[str, pa.Array]:
    """What the events of a transaction share; `places`: the transaction of each event."""
    count = len(transactions)
    xids = [_xid(one) for one in transactions]
    is_rollback = _integers((one.rollback_reason for one in transactions), count)

    def numbers(of: Iterable[int], kind: pa.DataType, absent: Integers | None = None) -> pa.Array:
        return _numbers(_integers(of, count), kind, absent)

    is_transaction = _integers((bool(one.transaction_id) for one in transactions), count)
    durations = _integers((one.duration_ms for one in transactions), count)
    sessions = _integers((one.session for one in transactions), count)
    times = _integers((one.commit_time_ms for one in transactions), count) * _MICROSECONDS
    made = {
        "index": numbers((one.index for one in transactions), pa.int64()),
        "epoch": numbers((one.epoch for one in transactions), pa.int64()),
        "commit_time": _numbers(times, _TYPES["timestamp"]),
        "duration_ms": _numbers(durations, pa.int64(), is_transaction),
        "transaction": pa.array(
            [_transaction(resource_set, one) for one in transactions],
            pa.string(),
        ),
        "global_id": pa.array([one.global_id.hex() or None for one in transactions], pa.string()),
        "xid": pa.array(xids, pa.string()),
        "resource_sets": numbers((one.resource_sets for one in transactions), pa.int32()),
        "events": numbers((one.events for one in transactions), pa.int32()),
        "session": _numbers(sessions, pa.int64(), sessions),
        "is_heuristic": pa.array([one.is_heuristic for one in transactions], pa.bool_()),
        "rollback_reason": _words(ROLLBACK_REASONS, is_rollback),
        "undone_publishes": numbers((one.undone_publishes for one in transactions), pa.int64(), is_rollback),
        "undone_accepts": numbers((one.undone_accepts for one in transactions), pa.int64(), is_rollback),
    }
    return {name: column.take(places) for name, column in made.items()}


def _transaction(resource_set: str, one: pb.EventBatch.Transaction) -> str:
    if one.global_id and one.xid_format == FORMAT_ID:
        return one.global_id.hex()
    return one.transaction_id or f"{resource_set}/{one.index}.{one.epoch}"


def _xid(one: pb.EventBatch.Transaction) -> str | None:
    return str(Xid(one.xid_format, one.global_id, one.branch_id)) if one.global_id else None


def _places(transactions: Sequence[pb.EventBatch.Transaction], here: Integers) -> Integers:
    """The place of each event in its transaction."""
    ends = np.cumsum(here)
    first = _integers((one.first_place for one in transactions), len(transactions))
    places: Integers = np.arange(here.sum()) + np.repeat(first - (ends - here), here)
    return places


def _of_resources(batch: pb.EventBatch, count: int) -> dict[str, pa.Array]:
    """The queue or exchange of each event; of a rollback there is none."""
    places = _integers(batch.events.resources, count)
    kinds = _integers(batch.events.kinds, count)
    is_named = (kinds != pb.EventBatch.KIND_ROLLBACK) & (places < len(batch.resources))
    taken = pa.array(places, mask=~is_named)
    named = batch.resources
    return {
        "kind": _words(KINDS, kinds),
        "queue": pa.array([one.name for one in named], pa.string()).take(taken),
        "queue_id": pa.array([one.id for one in named], pa.int64()).take(taken),
        "is_exchange": pa.array([one.is_exchange for one in named], pa.bool_()).take(taken),
    }


def _of_messages(resource_set: str, events: pb.EventBatch.Columns, count: int) -> dict[str, pa.Array]:
    """Where the messages stand, and what is in them."""
    indexes = _integers(events.position_indexes, count)
    ordinals = _integers(events.position_ordinals, count)
    sources = _integers(events.source_indexes, count)
    expires = _integers(events.expires_ms, count)
    position_indexes = _numbers(indexes, pa.int64(), indexes)
    position_ordinals = _numbers(ordinals, pa.int32(), indexes)
    return {
        "position_index": position_indexes,
        "position_ordinal": position_ordinals,
        "message_id": pc.binary_join_element_wise(
            pc.binary_join_element_wise(resource_set, position_indexes.cast(pa.string()), "/"),
            position_ordinals.cast(pa.string()),
            ".",
        ),
        "reason": _words(REASONS, _integers(events.reasons, count)),
        "source_index": _numbers(sources, pa.int64(), sources),
        "source_ordinal": _numbers(_integers(events.source_ordinals, count), pa.int32(), sources),
        "expires": _numbers(expires * _MICROSECONDS, _TYPES["timestamp"], expires),
    }


def _of_contents(events: pb.EventBatch.Columns, count: int, with_content: bool) -> dict[str, pa.Array]:
    """What was published; a dead letter has its content where it was published."""
    is_enqueue = _integers(events.kinds, count) == pb.EventBatch.KIND_ENQUEUE
    is_there = is_enqueue & (_integers(events.source_indexes, count) == 0) & with_content
    return {
        "properties": _contents(events.properties_lengths, events.properties, is_there, count),
        "body": _contents(events.body_lengths, events.bodies, is_there, count),
    }


def _contents(lengths: Sequence[int], data: bytes, is_there: Integers, count: int) -> pa.Array:
    """Values that stand one behind the other in `data`."""
    if not is_there.any():
        return pa.nulls(count, pa.binary())
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(_integers(lengths, count), out=offsets[1:])
    assert int(offsets[-1]) == len(data), "lengths and contents of a batch agree"
    valid = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _integers(values: Iterable[int], count: int) -> Integers:
    if isinstance(values, Sequence) and len(values) != count:
        assert not len(values), "a column has one element per event, or none at all"
        return np.zeros(count, np.int64)
    return np.fromiter(values, np.int64, count)


def _numbers(values: Integers, kind: pa.DataType, nonzero: Integers | None = None) -> pa.Array:
    """A column of numbers; null where `nonzero` is 0."""
    if pa.types.is_int32(kind):
        values = values.astype(np.int32)
    return pa.array(values, kind, mask=None if nonzero is None else nonzero == 0)


def _words(names: Mapping[int, str], numbers: Integers) -> pa.Array:
    """Names of numbers; null for 0, and digits for one without a name."""
    distinct, places = np.unique(numbers, return_inverse=True)
    words = [names.get(int(number), str(number)) if number else None for number in distinct]
    return pa.array(words, pa.string()).take(pa.array(places))


def _repeated(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))
