"""Queues against a sorted dict, and their costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.contents import Contents
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.invariants import check_invariants
from lockstep.core.items import Changes
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue, Dequeue, Message, Move, Publish, Requeue
from tests.unit.lockstep.core.history import Log, bodies, message


def empty_queue() -> tuple[Queue, Contents]:
    contents = Contents(Changes())
    return Queue(QueueId(1), DeclareQueue(None, "q", True), contents, Changes()), contents


@pytest.mark.fuzz
@given(st.data())
def test_a_queue_is_a_sorted_dict(data: st.DataObject) -> None:
    queue, contents = empty_queue()
    model: dict[int, bytes] = {}
    last = 0
    for _ in range(data.draw(st.integers(0, 20))):
        if data.draw(st.booleans()) or not model:
            count = data.draw(st.integers(1, 60))
            added = [QueuePosition(number) for number in range(last + 1, last + 1 + count)]
            last += count + data.draw(st.integers(0, 3))
            bodies_added = [b"x" * (position % 7) for position in added]
            ids = [MessageId(position) for position in added]
            size = sum(map(len, bodies_added))
            contents.add(ids, [Message((queue.id,), b"", body) for body in bodies_added], 1, 0, size)
            queue.append(added, ids, size, True)
            model |= dict(zip(added, bodies_added, strict=True))
        else:
            gone = data.draw(st.lists(st.integers(0, last + 2), max_size=60))
            removed = queue.remove([QueuePosition(number) for number in gone], True)
            contents.release(removed.durable, True)
            assert removed.positions == [
                number for number in dict.fromkeys(gone) if model.pop(number, None) is not None
            ]
        assert queue.positions() == sorted(model)
        assert queue.head() == min(model, default=None)
        assert (queue.length, queue.bytes) == (len(model), sum(map(len, model.values())))
        assert all(queue.size_of(position) == len(model[position]) for position in queue.positions())
        start, limit = data.draw(st.integers(0, last + 2)), data.draw(st.integers(0, 9))
        assert (
            queue.positions(start, limit) == [number for number in sorted(model) if number >= start][:limit]
        )


def test_taking_every_head_costs_the_same_for_each() -> None:
    log = Log()
    queue = log.queue("q")
    for _ in range(200):
        log.publish(*(message((queue,)) for _ in range(100)))
    longest = 0
    while (head := queue.head()) is not None:
        log.dequeue(queue, head)
        longest = max(longest, len(queue._order) - 2 * queue.length)
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
    assert log.state.contents.messages == {}
    check_invariants(log.state)


def test_a_message_for_no_queue_leaves_nothing() -> None:
    log = Log()
    gone = Queue(QueueId(77), DeclareQueue(None, "gone", True), log.state.contents, log.state.changes)
    log.publish(message((gone,)), message(()))
    log.append(Publish(None, None, 0, ()))
    assert log.state.contents.messages == {}


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
    assert (queue.length, queue.bytes, log.state.contents.messages) == (0, 0, {})


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
    assert (bodies(queue), bodies(other), queue.delivery_counts) == ([b"durable"], [b"transient"], {})
    assert not other.is_entry_durable(other.positions()[0])
    check_invariants(log.state)


def test_records_for_a_queue_that_is_gone_change_nothing() -> None:
    log = Log()
    gone = Queue(QueueId(77), DeclareQueue(None, "gone", True), log.state.contents, log.state.changes)
    log.dequeue(gone, QueuePosition(1))
    log.append(Requeue(None, gone.id, (QueuePosition(1),)))
    log.append(Move(None, 0, gone.id, (QueuePosition(1),), ()))
    key = log.begin()
    log.dequeue(gone, QueuePosition(1), transaction=key)
    log.commit(key)
    check_invariants(log.state)
