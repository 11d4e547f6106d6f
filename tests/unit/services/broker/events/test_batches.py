"""Batches on the wire: bounded, and each says how far everything is there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from lockstep.core.ids import Epoch, LogIndex, SessionKey, SetName, TimeMs, place
from lockstep.core.records import Message
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.core.events.transactions import CommittedTransaction, Effects, EventKind
from services.broker.events.batches import CONTENT_BYTES_MAX, EVENTS_MAX, encode_batches

SET = SetName("orders")
EPOCH = Epoch(3)
START, END = Offset(LogIndex(100), EPOCH), Offset(LogIndex(900), EPOCH)


def enqueue(index: int, *bodies: bytes, queue: int = 7, ordinal: int = 0) -> Effects:
    first = place(index, ordinal)
    messages = [Message((), b"p", body, 5, True) for body in bodies]
    return Effects(EventKind.ENQUEUE, queue, f"q{queue}", range(first, first + len(bodies)), messages)


def dequeue(*positions: int) -> Effects:
    return Effects(EventKind.DEQUEUE, 7, "q7", positions, reason=1)


def transaction(index: int, *effects: Effects, **more: object) -> CommittedTransaction:
    times = TimeMs(1_000), TimeMs(990)
    return CommittedTransaction(
        LogIndex(index),
        EPOCH,
        *times,
        SessionKey(0),
        effects=list(effects),
        **more,  # type: ignore[arg-type]
    )


def encoded(
    *transactions: CommittedTransaction, start: Offset = START, with_content: bool = True
) -> list[pb.EventBatch]:
    return [
        pb.EventBatch.FromString(data) for data in encode_batches(SET, transactions, start, END, with_content)
    ]


@dataclass(frozen=True)
class Event:
    index: int
    place: int
    kind: int
    queue: str
    position: tuple[int, int]
    body: bytes


def decoded(batches: Sequence[pb.EventBatch]) -> Iterator[Event]:
    for batch in batches:
        events = batch.events
        count = sum(one.events_here for one in batch.transactions)
        assert len(events.kinds) == count
        columns = [column or [0] * count for column in (events.position_ordinals, events.body_lengths)]
        number = body_at = 0
        for one in batch.transactions:
            for place_in in range(one.first_place, one.first_place + one.events_here):
                length = columns[1][number]
                resource = batch.resources[events.resources[number] if events.resources else 0]
                yield Event(
                    one.index,
                    place_in,
                    events.kinds[number],
                    resource.name,
                    (events.position_indexes[number], columns[0][number]),
                    events.bodies[body_at : body_at + length],
                )
                number, body_at = number + 1, body_at + length
        assert body_at == len(events.bodies)


def ends(batches: Sequence[pb.EventBatch]) -> list[int]:
    return [batch.end.index for batch in batches]


def test_nothing_is_one_empty_batch_that_says_how_far_it_goes() -> None:
    (batch,) = encoded()
    assert (batch.end.resource_set, batch.end.index, batch.end.epoch) == (SET, 900, EPOCH)
    assert batch.events == pb.EventBatch.Columns()
    assert not batch.transactions


def test_columns_that_are_all_zero_are_empty() -> None:
    (batch,) = encoded(transaction(101, dequeue(place(50, 0), place(50, 1))))
    filled = {field.name for field, _ in batch.events.ListFields()}
    assert filled == {"kinds", "position_indexes", "position_ordinals", "reasons"}
    assert list(batch.events.position_ordinals) == [0, 1], "one that is not all zero is whole"


def test_content_stands_one_behind_the_other_and_may_be_left_out() -> None:
    done = transaction(101, enqueue(101, b"one", b"", b"three"), dequeue(place(50, 0)))
    (batch,) = encoded(done)
    assert batch.events.bodies == b"onethree"
    assert list(batch.events.body_lengths) == [3, 0, 5, 0]
    assert batch.events.properties == b"ppp"
    assert list(batch.events.properties_lengths) == [1, 1, 1, 0]
    assert list(batch.events.expires_ms) == [5, 5, 5, 0]
    (without,) = encoded(done, with_content=False)
    assert (without.events.bodies, list(without.events.body_lengths)) == (b"", [])
    assert list(without.events.kinds) == list(batch.events.kinds)


def test_a_transaction_larger_than_a_batch_goes_on_in_the_next_ones() -> None:
    count = 2 * EVENTS_MAX + 10
    batches = encoded(
        transaction(101, dequeue(place(50, 0))),
        transaction(102, enqueue(102, *(b"%d" % number for number in range(count)))),
        transaction(103, dequeue(place(50, 1))),
    )
    assert [len(batch.events.kinds) for batch in batches] == [EVENTS_MAX, EVENTS_MAX, 12]
    assert ends(batches) == [101, 101, 900], "what is not there as a whole is behind the end"
    parts = [one for batch in batches for one in batch.transactions if one.index == 102]
    assert [(one.first_place, one.events_here) for one in parts] == [
        (0, EVENTS_MAX - 1),
        (EVENTS_MAX - 1, EVENTS_MAX),
        (2 * EVENTS_MAX - 1, 11),
    ]
    assert {one.events for one in parts} == {count}
    found = [event for event in decoded(batches) if event.index == 102]
    assert [event.place for event in found] == list(range(count))
    assert [event.body for event in found] == [b"%d" % number for number in range(count)]
    assert [event.position for event in found] == [(102, number) for number in range(count)]


def test_the_first_transaction_may_be_larger_than_a_batch() -> None:
    batches = encoded(transaction(101, dequeue(*(place(50, number) for number in range(EVENTS_MAX + 1)))))
    assert ends(batches) == [START.index, 900]
    assert (batches[0].end.epoch, batches[0].end.resource_set) == (EPOCH, SET)


def test_a_transaction_that_fills_a_batch_is_below_its_end() -> None:
    positions = [place(50, number) for number in range(EVENTS_MAX)]
    batches = encoded(transaction(101, dequeue(*positions)), transaction(102, dequeue(place(51, 0))))
    assert ends(batches) == [101, 900]
    assert [one.index for one in batches[1].transactions] == [102]


def test_a_batch_has_no_more_content_than_fits_and_a_larger_message_is_alone() -> None:
    half = bytes(CONTENT_BYTES_MAX // 2)
    huge = bytes(CONTENT_BYTES_MAX + 1)
    batches = encoded(
        transaction(101, enqueue(101, half, half, half, b"small")), transaction(102, enqueue(102, huge, huge))
    )
    sizes = [[event.body for event in decoded([batch])] for batch in batches]
    assert [[len(body) for body in bodies] for bodies in sizes] == [
        [len(half)],
        [len(half)],
        [len(half), 5],
        [len(huge)],
        [len(huge)],
    ], "a half each, as properties count"
    assert ends(batches) == [START.index, START.index, 101, 101, 900]
    (without,) = encoded(transaction(102, enqueue(102, huge, huge)), with_content=False)
    assert len(without.events.kinds) == 2


def test_effects_on_several_queues_stay_in_order_across_batches() -> None:
    first = enqueue(101, *([b"x"] * (EVENTS_MAX - 1)), queue=7)
    second = enqueue(101, b"a", b"b", queue=8, ordinal=EVENTS_MAX - 1)
    batches = encoded(transaction(101, first, second))
    assert [event.queue for event in decoded(batches)][-3:] == ["q7", "q8", "q8"]
    assert [resource.id for resource in batches[1].resources] == [8], "a batch stands for itself"


def test_dead_letters_say_where_they_came_from() -> None:
    sources = (place(50, 3), place(51, 0))
    arrived = Effects(
        EventKind.ENQUEUE,
        9,
        "dead",
        range(place(101, 0), place(101, 0) + 2),
        sources=sources,
        expires_ms=77,
    )
    (batch,) = encoded(transaction(101, arrived))
    assert list(batch.events.source_indexes) == [50, 51]
    assert list(batch.events.source_ordinals) == [3, 0]
    assert list(batch.events.expires_ms) == [77, 77]


def test_a_transaction_says_who_it_is() -> None:
    xid = Xid(7, b"global", b"branch")
    plain = transaction(101, dequeue(place(50, 0)))
    named = transaction(
        102,
        dequeue(place(50, 1)),
        key=(LogIndex(98), EPOCH),
        xid=xid.encode(),
        resource_sets=("east", "orders", "west", "west"),
        is_heuristic=True,
    )
    (batch,) = encoded(plain, named)
    one, other = batch.transactions
    assert (one.transaction_id, one.global_id, one.resource_sets) == ("", b"", 1)
    assert other.transaction_id == "orders/98.3"
    assert (other.xid_format, other.global_id, other.branch_id) == (7, b"global", b"branch")
    assert (other.resource_sets, other.is_heuristic) == (3, True)
    assert (other.commit_time_ms, other.duration_ms) == (1_000, 10)


@pytest.mark.parametrize("count", [1, EVENTS_MAX - 1, EVENTS_MAX, EVENTS_MAX + 1])
def test_every_event_is_there_once_however_batches_are_cut(count: int) -> None:
    transactions = [
        transaction(101 + number, enqueue(101 + number, *([b"x"] * count))) for number in range(4)
    ]
    found = list(decoded(encoded(*transactions)))
    assert [(event.index, event.place) for event in found] == [
        (101 + number, place_in) for number in range(4) for place_in in range(count)
    ]
