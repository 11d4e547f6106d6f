"""A TX applied as a whole comes to the same as its records applied one by one."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from lockstep.core.apply_whole import AppliedAt, apply_whole, stretch
from lockstep.core.frames import Frame, decode_packed
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.invariants import check_invariants
from lockstep.core.records import DequeueReason, Prepare, Publish
from lockstep.core.set_state import SetState
from tests.unit.lockstep.core.history import SET, Log, bodies, message
from tests.unit.lockstep.core.test_state_laws import HISTORIES, assert_equal
from tests.unit.lockstep.core.test_state_listener import Diary


def apply_one_by_one(state: SetState, frame: Frame) -> None:
    for index, record, is_durable in decode_packed(frame):
        state.apply(index, frame.header.epoch, record, is_durable)
    state.close_frame(frame.header)


@pytest.mark.fuzz
@pytest.mark.parametrize("is_whole_log", [True, False], ids=["all records", "durable ones"])
@given(log=HISTORIES)
def test_it_comes_to_the_same_and_is_heard_as_the_same(is_whole_log: bool, log: Log) -> None:
    diary, other_diary = Diary(), Diary()
    one, other = SetState(SET, diary), SetState(SET, other_diary)
    for frame in log.frames:
        part = frame if is_whole_log else frame._replace(transient=b"")
        one.apply_frame(part)
        apply_one_by_one(other, part)
        check_invariants(one)
        assert_equal(one, other)
        heard, other_heard = diary.told(), other_diary.told()
        # A whole transaction's operations are answered with its commit.
        for is_answer in (True, False):
            assert answers_or_not(heard, is_answer) == answers_or_not(other_heard, is_answer)


def answers_or_not(heard: list[object], is_answer: bool) -> list[object]:
    return [each for each in heard if (isinstance(each, tuple) and each[0] == "answered") is is_answer]


def durable_records(log: Log) -> Sequence[AppliedAt]:
    log.flush()
    return decode_packed(log.frames[-1]._replace(transient=b""))


def test_a_stretch_is_what_one_transaction_does_in_a_row() -> None:
    log = Log()
    queue = log.queue("q")
    one, two = log.begin(), log.begin()
    log.flush()
    log.publish(message((queue,)), transaction=one)
    log.publish(message((queue,)), transaction=one)
    log.publish(message((queue,)), transaction=two)
    log.commit(two)
    log.publish(message((queue,)))
    log.publish(message((queue,)), transaction=one)
    log.prepare(one, b"xid")
    records, begin, stretches = durable_records(log), 0, []
    while begin < len(records):
        end, is_whole = stretch(records, begin)
        stretches.append((end - begin, is_whole))
        begin = end
    assert stretches == [(2, False), (2, True), (1, False), (2, False)]


def test_operations_at_the_end_of_a_frame_are_no_whole_transaction() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.flush()
    log.publish(message((queue,)), transaction=key)
    log.publish(message((queue,)), transaction=key)
    assert stretch(durable_records(log), 0) == (2, False)


def transaction_of(log: Log) -> Sequence[AppliedAt]:
    """Of a new one that publishes a message, the durable records. They are applied to the log's own state, record by record."""
    log.flush()
    key = log.begin()
    log.publish(message((log.state.queues.by_name["q"],), b"new"), transaction=key)
    log.commit(key)
    return durable_records(log)


def a_log() -> tuple[Log, SetState]:
    """A log with a queue, and a state that has applied it."""
    log = Log()
    log.queue("q")
    log.flush()
    state = SetState(SET)
    state.apply_frame(log.frames[0])
    return log, state


def test_one_that_publishes_nothing_commits_all_the_same() -> None:
    log, state = a_log()
    key = log.begin()
    log.append(Publish(None, key, 0, ()))
    log.commit(key)
    values = apply_whole(state, log.epoch, durable_records(log))
    assert values is not None and values[0] == 0
    assert bodies(state.queues.by_name["q"]) == []
    assert state.outcomes.all() == log.state.outcomes.all() != []


def test_no_buffer_is_made_for_it() -> None:
    log, state = a_log()
    records = transaction_of(log)
    values = apply_whole(state, log.epoch, records)
    assert values is not None and len(values) == 2
    assert bodies(state.queues.by_name["q"]) == [b"new"]
    assert state.transactions.live == {}
    assert state.outcomes.all() == log.state.outcomes.all()


def test_of_one_that_ended_already_nothing_is_done() -> None:
    log, state = a_log()
    records = transaction_of(log)
    assert apply_whole(state, log.epoch, records) is not None
    assert apply_whole(state, log.epoch, records) is None
    assert len(bodies(state.queues.by_name["q"])) == 1


def test_of_one_that_an_epoch_has_aborted_nothing_is_done() -> None:
    log, state = a_log()
    records = transaction_of(log)
    state.open_from = Epoch(log.epoch + 1)
    assert apply_whole(state, Epoch(log.epoch + 1), records) is None
    assert bodies(state.queues.by_name["q"]) == []


def test_of_one_that_has_done_more_before_nothing_is_done() -> None:
    log, state = a_log()
    key = log.begin()
    log.publish(message((log.state.queues.by_name["q"],), b"first"), transaction=key)
    log.flush()
    state.apply_frame(log.frames[-1])
    log.publish(message((log.state.queues.by_name["q"],), b"second"), transaction=key)
    log.commit(key)
    records = durable_records(log)
    assert apply_whole(state, log.epoch, records) is None
    assert [len(buffer.operations) for buffer in state.transactions.open()] == [1]
    state.apply_frame(log.frames[-1])
    assert bodies(state.queues.by_name["q"]) == [b"first", b"second"]


@pytest.mark.parametrize("with_begin", [True, False])
def test_of_a_branch_that_commits_in_one_phase_nothing_is_done(with_begin: bool) -> None:
    log, state = a_log()
    key = log.begin(b"xid")
    log.flush()
    if with_begin:
        state.apply_frame(log.frames[-1])
    log.publish(message((log.state.queues.by_name["q"],)), transaction=key)
    log.commit(key, b"xid")
    records = durable_records(log)
    assert isinstance(records[-1][1], Prepare)
    assert apply_whole(state, log.epoch, records) is None
    assert state.applied < LogIndex(records[0][0])


def check_last_frame(log: Log) -> list[object]:
    """Apply the log both ways; answers what is heard of the last frame."""
    log.flush()
    diary, other_diary = Diary(), Diary()
    one, other = SetState(SET, diary), SetState(SET, other_diary)
    for frame in log.frames:
        diary.told(), other_diary.told()
        one.apply_frame(frame)
        apply_one_by_one(other, frame)
    assert_equal(one, other)
    heard = diary.told()
    assert heard == other_diary.told()
    return heard


def test_what_another_has_locked_stays() -> None:
    log, _ = a_log()
    queue = log.state.queues.by_name["q"]
    log.publish(message((queue,)), message((queue,)))
    first, second = queue.positions()
    holder = log.begin()
    log.dequeue(queue, first, transaction=holder)
    log.flush()
    key = log.begin()
    log.dequeue(queue, first, second, transaction=key, reason=DequeueReason.REJECTED)
    log.commit(key)
    heard = check_last_frame(log)
    assert heard[0] == ("dequeued", "q", 1, DequeueReason.REJECTED, key)
    assert queue.locks == {first: holder}


def test_a_transient_record_takes_no_durable_message() -> None:
    log, _ = a_log()
    queue = log.state.queues.by_name["q"]
    log.publish(message((queue,)))
    log.publish(message((queue,), is_durable=False), is_durable=False)
    log.flush()
    key = log.begin()
    log.dequeue(queue, *queue.positions(), transaction=key, is_durable=False)
    log.commit(key)
    heard = check_last_frame(log)
    assert heard[0] == ("dequeued", "q", 1, DequeueReason.ACCEPTED, key)
    assert queue.length == 1
