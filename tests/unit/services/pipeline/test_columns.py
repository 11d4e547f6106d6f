"""Event batches as Arrow record batches."""

from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lockstep.wire.v1 import events_pb2 as pb
from services.pipeline.columns import ARROW_SCHEMA, as_record_batch
from services.pipeline.schema import COLUMNS, KINDS, REASONS
from tests.unit.lockstep.client.fake_events import (
    BEGIN_MS,
    DEQUEUE,
    ENQUEUE,
    Event,
    Transaction,
    batches_of,
    dequeue,
    enqueue,
)


def rows_of(transactions: list[Transaction], events_max: int = 1000, **options: Any) -> list[dict[str, Any]]:
    end = pb.EventOffset(resource_set="east", index=1000, epoch=1)
    begin = pb.EventOffset(resource_set="east")
    batches = batches_of(transactions, end, begin, events_max, **options)
    with_content = not options.get("without_content", False)
    return list(
        chain.from_iterable(as_record_batch(one, with_content=with_content).to_pylist() for one in batches)
    )


def test_the_schema_is_to_the_letter_what_spark_makes_of_it() -> None:
    types = {"bigint": "long", "int": "integer"}
    schema = StructType()
    for name, kind in COLUMNS:
        schema.add(name, types.get(kind, kind))
    assert to_arrow_schema(schema, timezone="UTC").equals(ARROW_SCHEMA)


def test_an_enqueue_has_its_transaction_and_its_content() -> None:
    (row,) = rows_of([Transaction(10, (enqueue("orders", b"hello"),), duration_ms=7)])
    assert row == {
        "resource_set": "east",
        "index": 10,
        "epoch": 1,
        "commit_time": datetime.fromtimestamp((BEGIN_MS + 10) / 1000, UTC),
        "duration_ms": 7,
        "transaction": "east/9.1",
        "global_id": None,
        "xid": None,
        "resource_sets": 1,
        "events": 1,
        "place": 0,
        "kind": "enqueue",
        "queue": "orders",
        "queue_id": sum(b"orders"),
        "is_exchange": False,
        "position_index": 10,
        "position_ordinal": 0,
        "message_id": "east/10.0",
        "reason": None,
        "source_index": None,
        "source_ordinal": None,
        "session": 3,
        "expires": None,
        "properties": b"",
        "body": b"hello",
        "is_heuristic": False,
        "rollback_reason": None,
        "undone_publishes": None,
        "undone_accepts": None,
    }


def test_a_dequeue_has_a_reason_and_no_content() -> None:
    (row,) = rows_of([Transaction(10, (dequeue("orders", 7, 2),))])
    assert [row[name] for name in ("kind", "reason", "message_id", "body", "properties")] == [
        "dequeue",
        "accepted",
        "east/7.2",
        None,
        None,
    ]


def test_branches_of_our_coordinator_share_the_name_of_their_transaction_and_others_do_not() -> None:
    ours = Transaction(10, (enqueue("q", b""),), global_id=b"\xab" * 16, resource_sets=2)
    foreign = Transaction(20, (enqueue("q", b""),), global_id=b"\xcd", xid_format=7)
    command = Transaction(30, (enqueue("q", b""),), is_command=True, session=0, duration_ms=0)
    rows = rows_of([ours, foreign, command])
    assert [row["transaction"] for row in rows] == ["ab" * 16, "east/19.1", "east/30.1"]
    assert [row["xid"] for row in rows] == [f"1280004948:{'ab' * 16}:00", "7:cd:00", None]
    assert [row["resource_sets"] for row in rows] == [2, 1, 1]
    assert [(row["session"], row["duration_ms"]) for row in rows[1:]] == [(3, 2), (None, None)]


def test_a_transaction_that_goes_on_in_the_next_batch_keeps_its_places() -> None:
    rows = rows_of([Transaction(10, tuple(enqueue("q", b"%d" % place) for place in range(5)))], events_max=2)
    assert [(row["place"], row["body"], row["events"]) for row in rows] == [
        (place, b"%d" % place, 5) for place in range(5)
    ]


def test_a_read_without_content_has_none() -> None:
    (row,) = rows_of([Transaction(10, (enqueue("q", b"hello"),))], without_content=True)
    assert (row["body"], row["properties"], row["message_id"]) == (None, None, "east/10.0")


def test_a_dead_letter_says_where_it_stood_and_has_its_content_elsewhere() -> None:
    (row,) = rows_of([Transaction(10, (Event(ENQUEUE, "dead", source=(4, 1)),))])
    assert (row["source_index"], row["source_ordinal"], row["body"]) == (4, 1, None)


def test_columns_of_zeros_may_be_absent() -> None:
    batch = pb.EventBatch(end=pb.EventOffset(resource_set="east", index=5, epoch=1))
    batch.transactions.add(index=5, epoch=1, events=1, events_here=1)
    batch.resources.add(id=2, name="q")
    batch.events.kinds.append(ENQUEUE)
    batch.events.position_indexes.append(5)
    (row,) = as_record_batch(batch).to_pylist()
    assert (row["queue"], row["message_id"], row["body"], row["reason"]) == ("q", "east/5.0", b"", None)


def test_a_rollback_has_no_queue_and_its_counts() -> None:
    batch = pb.EventBatch(end=pb.EventOffset(resource_set="east", index=5, epoch=1))
    batch.transactions.add(
        index=5, epoch=1, events=1, events_here=1, rollback_reason=3, undone_publishes=4, undone_accepts=0
    )
    batch.events.kinds.append(pb.EventBatch.KIND_ROLLBACK)
    batch.events.resources.append(0)
    (row,) = as_record_batch(batch).to_pylist()
    names = ("kind", "queue", "message_id", "rollback_reason", "undone_publishes", "undone_accepts")
    assert [row[name] for name in names] == ["rollback", None, None, "timed_out", 4, 0]


def test_numbers_without_a_name_are_shown_as_digits() -> None:
    (row,) = rows_of([Transaction(10, (Event(DEQUEUE, "q", position=(3, 0), reason=99),))])
    assert row["reason"] == "99"
    assert set(KINDS.values()) >= {"enqueue", "dequeue", "dead_letter", "rollback"}
    assert REASONS[1] == "accepted"


def test_columns_of_unequal_length_are_a_bug() -> None:
    batch = pb.EventBatch(end=pb.EventOffset(resource_set="east", index=5, epoch=1))
    batch.transactions.add(index=5, epoch=1, events=2, events_here=2)
    batch.events.kinds.append(pb.EventBatch.KIND_ENQUEUE)
    with pytest.raises(AssertionError, match="belongs to one transaction"):
        as_record_batch(batch)


@given(
    st.lists(
        st.lists(st.one_of(st.binary(max_size=20), st.none()), min_size=1, max_size=6), min_size=1, max_size=8
    ),
    st.integers(1, 9),
)
def test_however_a_log_is_cut_into_batches_its_rows_are_the_same(
    bodies: list[list[bytes | None]], events_max: int
) -> None:
    log = [
        Transaction(
            10 * number,
            tuple(
                Event(ENQUEUE, f"q{place % 2}", body)
                if body is not None
                else dequeue(f"q{place % 2}", number, place)
                for place, body in enumerate(one)
            ),
        )
        for number, one in enumerate(bodies, 1)
    ]
    rows = rows_of(log, events_max)
    assert rows == rows_of(log)
    assert [row["body"] for row in rows] == list(chain.from_iterable(bodies))
    assert [(row["index"], row["place"]) for row in rows] == [
        (one.index, place) for one in log for place in range(len(one.events))
    ]


def test_an_empty_batch_is_empty() -> None:
    assert as_record_batch(pb.EventBatch()).num_rows == 0
    assert isinstance(as_record_batch(pb.EventBatch()), pa.RecordBatch)
