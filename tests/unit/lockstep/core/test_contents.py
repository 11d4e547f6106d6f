"""Bodies that are away and come back, and contents in snapshots."""

import pytest

from lockstep.core.ids import MessageId
from lockstep.core.invariants import check_invariants
from lockstep.core.item_values import decode_content
from lockstep.core.items import MESSAGE, message_key
from lockstep.core.records import Requeue
from lockstep.core.restoration import restore
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from tests.unit.lockstep.core.history import SET, Log, bodies, message


def test_a_dropped_body_leaves_size_and_hash_and_every_record_still_applies() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    index = log.publish(message((queue,), b"12345", properties=b"pp"), transaction=key)
    before = state_hash(log.state)
    ((message_id, _),) = log.state.contents.items()
    log.state.drop_content(message_id)
    assert state_hash(log.state) == before
    log.commit(key)
    (position,) = queue.positions()
    assert (queue.length, queue.bytes, queue.message(position)) == (1, 7, None)
    assert message_id >> 24 == index
    check_invariants(log.state)
    log.dequeue(queue, position)
    assert (queue.bytes, len(log.state.contents)) == (0, 0)


def test_a_body_comes_back_to_where_it_was() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"12345"))
    ((message_id, _),) = log.state.contents.items()
    for _ in range(2):
        log.state.drop_content(message_id)
    log.state.set_content(message_id, message((queue,), b"12345"))
    assert bodies(queue) == [b"12345"]
    assert log.state.message(queue.id, queue.positions()[0]) == message((queue,), b"12345")


def test_another_body_than_was_dropped_is_our_own_bug() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"12345"))
    ((message_id, _),) = log.state.contents.items()
    log.state.drop_content(message_id)
    with pytest.raises(AssertionError, match="came back changed"):
        log.state.set_content(message_id, message((queue,), b"54321"))


def test_dropping_or_restoring_what_is_gone_changes_nothing() -> None:
    log = Log()
    queue = log.queue("q")
    log.state.drop_content(MessageId(5))
    log.state.set_content(MessageId(5), message((queue,)))
    assert len(log.state.contents) == 0


def test_a_content_is_one_item_however_many_queues_hold_it() -> None:
    log = Log()
    queues = tuple(log.queue(name) for name in ("a", "b", "c"))
    log.publish(message(queues, b"body"))
    found = [item for item in log.state.items() if item.key.startswith(MESSAGE)]
    assert [decode_content(item.value) for item in found] == [message(queues, b"body")]


def test_a_content_is_durable_as_long_as_a_durable_entry_holds_it() -> None:
    log = Log()
    durable, transient = log.queue("durable"), log.queue("transient", is_durable=False)
    index = log.publish(message((durable, transient)))
    key = message_key(MessageId(index << 24))
    item = log.state.item(key)
    assert item is not None and item.is_durable
    log.dequeue(durable, *durable.positions())
    item = log.state.item(key)
    assert item is not None and not item.is_durable
    log.dequeue(transient, *transient.positions(), is_durable=False)
    assert log.state.item(key) is None


def test_a_state_can_be_loaded_and_passed_on_without_bodies() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"12345"))
    lean = SetState(SET)
    restore(lean, log.state.items(), resident_bytes_max=0)
    assert (lean.queues.by_name["q"].bytes, bodies(lean.queues.by_name["q"])) == (5, [])
    again = SetState.from_items(SET, lean.items())
    assert state_hash(again) == state_hash(lean) == state_hash(log.state)


def test_what_is_applied_while_a_snapshot_is_read_is_not_in_it() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"), message((queue,), b"b"))
    log.publish(message((queue,), b"t", is_durable=False), is_durable=False)
    log.append(Requeue(None, queue.id, tuple(queue.positions(0, 1))))
    key = log.begin()
    log.publish(message((queue,), b"c"), transaction=key)
    log.flush()
    expected, reading = list(log.state.items()), log.state.items()
    read = [next(reading)]
    log.dequeue(queue, *queue.positions())
    log.commit(key)
    log.begin_epoch(is_restarted=True)
    read += reading
    assert read == expected
