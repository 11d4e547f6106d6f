"""Queues against a sorted dict, and their costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.contents import Contents
from lockstep.core.entry_pages import PAGE_ENTRIES
from lockstep.core.ids import (
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    message_ids_from,
    place,
    positions_from,
)
from lockstep.core.invariants import check_invariants
from lockstep.core.items import Changes
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue, Dequeue, Message, Move, Publish, Requeue
from tests.unit.lockstep.core.history import Log, bodies, message


def empty_queue() -> tuple[Queue, Contents]:
    contents = Contents(Changes())
    return Queue(QueueId(1), DeclareQueue(None, "q", True), contents, Changes(), PAGE_ENTRIES), contents


@pytest.mark.fuzz
@given(st.data())
def test_a_queue_is_a_sorted_dict(data: st.DataObject) -> None:
    """However many come together, of one record or several, and whatever leaves in which order."""
    queue, contents = empty_queue()
    model: dict[QueuePosition, tuple[MessageId, bytes]] = {}
    index, ordinal = LogIndex(0), 0
    for record in range(data.draw(st.integers(0, 20))):
        if data.draw(st.booleans()) or not model:
            count = data.draw(st.integers(1, 60))
            if data.draw(st.integers(0, 3)):
                index, ordinal = LogIndex(index + 1), 0
            positions = positions_from(index, ordinal, count)
            ids = message_ids_from(LogIndex(1000 + record), data.draw(st.integers(0, 2)), count)
            ordinal += count + data.draw(st.integers(0, 2))
            if data.draw(st.booleans()):
                chosen = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
                positions, ids = (
                    [positions[each] for each in sorted(chosen)],
                    [ids[each] for each in sorted(chosen)],
                )
            added = [b"x" * (position % 7) for position in positions]
            size = sum(map(len, added))
            contents.add(ids, [Message((queue.id,), b"", body) for body in added], 1, 0, size)
            queue.append(positions, ids, size, True)
            model |= dict(zip(positions, zip(ids, added, strict=True), strict=True))
        else:
            there = sorted(model)
            begin = data.draw(st.integers(0, len(there) - 1))
            gone = there[begin : begin + data.draw(st.integers(0, 90))]
            gone += data.draw(
                st.lists(st.sampled_from([*there, QueuePosition(place(index, ordinal))]), max_size=5)
            )
            if data.draw(st.booleans()):
                gone = data.draw(st.permutations(gone))
            expected = [number for number in dict.fromkeys(gone) if number in model]
            assert list(dict.fromkeys(queue.present(gone))) == expected
            removed = queue.remove(tuple(gone), True)
            ids_removed = [number for batch in removed.durable for number in batch]
            for batch in removed.durable:
                contents.release(batch, True)
            assert removed.positions == expected and not removed.transient
            assert ids_removed == [model.pop(number)[0] for number in expected]
        assert queue.positions() == sorted(model)
        assert queue.head() == min(model, default=None)
        assert (queue.length, queue.bytes) == (len(model), sum(len(body) for _, body in model.values()))
        assert len(contents) == len(model)
        assert contents.resident_bytes == queue.bytes
        assert list(queue.items()) == [(number, model[number][0]) for number in sorted(model)]
        assert [each.body for each in queue.messages(sorted(model))] == [
            model[number][1] for number in sorted(model)
        ]
        assert queue.message_ids(sorted(model)) == [model[number][0] for number in sorted(model)]
        start = data.draw(st.sampled_from([0, *model, place(index, ordinal)])) + data.draw(st.integers(-1, 1))
        limit = data.draw(st.integers(0, 70))
        assert (
            queue.positions(max(start, 0), limit)
            == [number for number in sorted(model) if number >= start][:limit]
        )
        assert queue.size_of(queue.positions(max(start, 0), limit)) == sum(
            len(model[number][1]) for number in queue.positions(max(start, 0), limit)
        )


def test_taking_every_head_costs_the_same_for_each() -> None:
    log = Log()
    queue = log.queue("q")
    for _ in range(200):
        log.publish(*(message((queue,)) for _ in range(100)))
    longest = 0
    while (head := queue.head()) is not None:
        log.dequeue(queue, head)
        longest = max(longest, sum(len(page.order) for page in queue._pages) - 2 * queue.length)
    assert longest <= 64
    assert queue.positions() == []


def test_a_message_in_several_queues_is_one_object_and_goes_with_the_last() -> None:
    log = Log()
    one, two = log.queue("one"), log.queue("two", is_durable=False)
    log.publish(message((one, two), b"shared"))
    (position,) = one.positions()
    assert one.message(position) is two.message(position)
    log.dequeue(one, position)
    assert bodies(two) == [b"shared"]
    log.dequeue(two, position, is_durable=False)
    assert len(log.state.contents) == 0
    check_invariants(log.state)


def test_a_message_for_no_queue_leaves_nothing() -> None:
    log = Log()
    gone = Queue(
        QueueId(77), DeclareQueue(None, "gone", True), log.state.contents, log.state.changes, PAGE_ENTRIES
    )
    log.publish(message((gone,)), message(()))
    log.append(Publish(None, None, 0, ()))
    assert len(log.state.contents) == 0


def test_a_returned_message_keeps_its_position_and_is_counted() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"), message((queue,), b"b"))
    first, _ = queue.positions()
    for _ in range(2):
        log.append(Requeue(None, queue.id, (first, QueuePosition(5))))
    assert bodies(queue) == [b"a", b"b"]
    assert queue.delivery_counts == {first: 2}


def test_a_moved_message_gets_the_position_of_the_move_and_no_count() -> None:
    log = Log()
    source, target, other = log.queue("source"), log.queue("target"), log.queue("other", is_durable=False)
    log.publish(message((source,), b"a"), message((source,), b"b"))
    first, second = source.positions()
    log.append(Requeue(None, source.id, (first,)))
    log.append(
        Move(None, 3, source.id, (second, QueuePosition(1), first), (target.id, other.id, QueueId(99)))
    )
    assert (bodies(source), bodies(target), bodies(other)) == ([], [b"b", b"a"], [b"b", b"a"])
    assert [position & 0xFFFFFF for position in target.positions()] == [3, 5]
    assert target.delivery_counts == {}
    assert target.is_entry_durable(target.positions()[0])
    check_invariants(log.state)


def test_a_move_without_targets_drops_the_message() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"))
    log.append(Move(None, 0, queue.id, tuple(queue.positions()), ()))
    assert (queue.length, queue.bytes, len(log.state.contents)) == (0, 0, 0)


def test_a_transient_record_never_takes_a_durable_message() -> None:
    log = Log()
    queue, other = log.queue("q"), log.queue("other")
    log.publish(message((queue,), b"durable"))
    log.publish(message((queue,), b"transient", is_durable=False), is_durable=False)
    durable, transient = queue.positions()
    key = log.begin()
    log.dequeue(queue, durable, transaction=key, is_durable=False)
    assert queue.locks == {}
    log.append(Requeue(None, queue.id, (durable,)), is_durable=False)
    log.append(Move(None, 0, queue.id, (durable, transient), (other.id,)), is_durable=False)
    log.append(Dequeue(None, None, 0, queue.id, (durable,)), is_durable=False)
    assert (bodies(queue), bodies(other), dict(queue.delivery_counts)) == ([b"durable"], [b"transient"], {})
    assert not other.is_entry_durable(other.positions()[0])
    check_invariants(log.state)


def test_records_for_a_queue_that_is_gone_change_nothing() -> None:
    log = Log()
    gone = Queue(
        QueueId(77), DeclareQueue(None, "gone", True), log.state.contents, log.state.changes, PAGE_ENTRIES
    )
    log.dequeue(gone, QueuePosition(1))
    log.append(Requeue(None, gone.id, (QueuePosition(1),)))
    log.append(Move(None, 0, gone.id, (QueuePosition(1),), ()))
    key = log.begin()
    log.dequeue(gone, QueuePosition(1), transaction=key)
    log.commit(key)
    check_invariants(log.state)
