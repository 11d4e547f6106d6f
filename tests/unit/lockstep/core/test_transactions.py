"""Transactions as records make and end them."""

import pytest

from lockstep.core.ids import Epoch, LogIndex, place
from lockstep.core.invariants import check_invariants
from lockstep.core.records import (
    Commit,
    DeleteQueue,
    MarkRollbackOnly,
    Prepare,
    Publish,
    RollbackReason,
)
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer
from tests.unit.lockstep.core.history import Log, bodies, durable_replay, message


def test_nothing_of_a_transaction_is_visible_before_its_commit_and_all_of_it_after() -> None:
    log = Log()
    one, two = log.queue("one"), log.queue("two")
    log.publish(message((one,), b"old"))
    key = log.begin()
    log.publish(message((one, two), b"a"), message((two,), b"b"), transaction=key)
    log.dequeue(one, *one.positions(), transaction=key)
    assert (bodies(one), bodies(two)) == ([], [])
    log.commit(key)
    assert (bodies(one), bodies(two)) == ([b"a"], [b"a", b"b"])
    check_invariants(log.state)


def test_a_committed_message_stands_at_the_index_of_the_commit_and_its_own_ordinal() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    first = log.publish(message((queue,), b"a"), message((queue,), b"b"), transaction=key)
    log.publish(message((queue,), b"between"))
    second = log.publish(message((queue,), b"c"), transaction=key)
    index = log.commit(key)
    committed = queue.positions(place(index, 0))
    assert committed == [place(index, ordinal) for ordinal in range(3)]
    assert queue.message_ids(committed) == [
        place(first, 0),
        place(first, 1),
        place(second, 2),
    ]
    assert bodies(queue) == [b"between", b"a", b"b", b"c"]


def test_ordinals_decide_the_order_and_not_the_log() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.append(Publish(None, key, 5, (message((queue,), b"later"),)))
    log.append(Publish(None, key, 2, (message((queue,), b"sooner"),)))
    log.commit(key)
    assert bodies(queue) == [b"sooner", b"later"]
    check_invariants(log.state)


def test_an_open_transaction_reserves_room_and_its_end_gives_it_back() -> None:
    log = Log()
    queue = log.queue("q")
    kept, dropped = log.begin(), log.begin()
    for key in (kept, dropped):
        log.publish(message((queue,), b"12345", properties=b"p"), transaction=key)
    assert (queue.length, queue.reserved_length, queue.reserved_bytes) == (0, 2, 12)
    log.rollback(dropped)
    log.commit(kept)
    assert (queue.length, queue.bytes, queue.reserved_length, queue.reserved_bytes) == (1, 6, 0, 0)


def test_rollback_puts_messages_back_in_their_places_and_counts_a_delivery() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(*(message((queue,), body) for body in (b"a", b"b", b"c")))
    first, second, _ = queue.positions()
    key = log.begin()
    log.dequeue(queue, second, transaction=key)
    log.dequeue(queue, first, transaction=key)
    assert bodies(queue) == [b"c"]
    log.rollback(key)
    assert bodies(queue) == [b"a", b"b", b"c"]
    assert queue.delivery_counts == {first: 1, second: 1}
    assert log.state.outcome(key).reason == RollbackReason.CLIENT


def test_a_new_epoch_aborts_open_transactions_without_counting_a_delivery() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"))
    key = log.begin(b"branch")
    log.dequeue(queue, *queue.positions(), transaction=key)
    log.publish(message((queue,), b"b"), transaction=key)
    log.begin_epoch()
    assert bodies(queue) == [b"a"]
    assert (dict(queue.delivery_counts), queue.reserved_length, log.state.transactions.live) == ({}, 0, {})
    assert len(log.state.outcomes) == 0
    assert log.state.outcome(key).state is TransactionState.ROLLED_BACK
    check_invariants(log.state)


def test_an_epoch_that_is_handed_over_leaves_open_transactions_open() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"))
    written, empty, left = log.begin(), log.begin(), log.begin()
    log.dequeue(queue, *queue.positions(), transaction=written)
    log.begin_epoch(is_handed_over=True)
    log.publish(message((queue,), b"b"), transaction=written)
    log.publish(message((queue,), b"c"), transaction=empty)
    log.commit(written)
    log.commit(empty)
    assert bodies(queue) == [b"b", b"c"]
    log.flush()
    durable = durable_replay(log.frames)
    assert bodies(durable.queues.by_name["q"]) == [b"b", b"c"]
    log.begin_epoch()
    assert log.state.outcome(left).state is TransactionState.ROLLED_BACK
    assert log.state.open_from == log.epoch
    check_invariants(log.state)


@pytest.mark.parametrize(
    "reason",
    [
        RollbackReason.CLIENT,
        RollbackReason.SESSION_ENDED,
        RollbackReason.TIMED_OUT,
        RollbackReason.REFUSED,
        RollbackReason.FENCED,
        RollbackReason.FAILOVER,
        RollbackReason.ROLLBACK_ONLY,
    ],
)
def test_a_rollback_behind_a_prepare_is_ignored(reason: int) -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,), b"a"), transaction=key)
    log.prepare(key, b"branch")
    log.rollback(key, reason)
    assert log.state.outcome(key).state is TransactionState.PREPARED
    log.append(Commit(None, key))
    log.rollback(key, reason)
    assert log.state.outcome(key).state is TransactionState.COMMITTED
    assert bodies(queue) == [b"a"]


def test_a_rollback_behind_the_commit_of_a_tx_is_ignored_and_so_is_a_commit_behind_a_rollback() -> None:
    log = Log()
    queue = log.queue("q")
    committed, rolled_back = log.begin(), log.begin()
    for key in (committed, rolled_back):
        log.publish(message((queue,), b"a"), transaction=key)
    log.commit(committed)
    log.rollback(committed, RollbackReason.FENCED)
    log.rollback(rolled_back, RollbackReason.FENCED)
    log.commit(rolled_back)
    assert log.state.outcome(committed).state is TransactionState.COMMITTED
    assert log.state.outcome(rolled_back).state is TransactionState.ROLLED_BACK
    assert bodies(queue) == [b"a"]


def test_a_late_record_of_a_finished_transaction_changes_nothing() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"old"))
    key = log.begin()
    log.rollback(key)
    log.publish(message((queue,), b"late"), transaction=key)
    log.dequeue(queue, *queue.positions(), transaction=key)
    log.append(MarkRollbackOnly(None, key), is_durable=False)
    assert bodies(queue) == [b"old"]
    assert log.state.transactions.live == {}
    check_invariants(log.state)


def test_a_record_of_a_transaction_that_an_earlier_epoch_aborted_changes_nothing() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.begin_epoch()
    log.publish(message((queue,), b"late"), transaction=key)
    log.commit(key)
    assert bodies(queue) == []
    assert log.state.outcome(key).state is TransactionState.ROLLED_BACK


def test_the_commit_of_an_unknown_transaction_is_recorded() -> None:
    log = Log()
    log.queue("q")
    key = (LogIndex(1), Epoch(1))
    log.commit(key)
    assert log.state.outcome(key).state is TransactionState.COMMITTED


def test_a_transaction_whose_begin_is_missing_is_opened_by_the_first_record_that_names_it() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,), b"a"), transaction=key)
    log.flush()
    state = durable_replay(log.frames)
    assert type(state.transactions.live[key]) is TxBuffer
    log.prepare(key, b"branch")
    log.flush()
    state.apply_frame(log.frames[-1])
    assert type(state.transactions.live[key]) is DtxBuffer
    assert state.transactions.find_xid(b"branch") is state.transactions.live[key]


def test_preparing_twice_is_preparing_once() -> None:
    log = Log()
    key = log.begin(b"branch")
    log.prepare(key, b"branch")
    log.prepare(key, b"branch")
    assert log.state.outcome(key).state is TransactionState.PREPARED
    log.append(Commit(None, key))
    assert log.state.outcome(key).state is TransactionState.COMMITTED


def test_the_second_round_does_not_commit_what_was_not_prepared() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,), b"a"), transaction=key)
    log.append(Commit(None, key))
    assert log.state.outcome(key).state is TransactionState.OPEN
    assert bodies(queue) == []


def test_one_phase_does_not_commit_what_was_prepared() -> None:
    log = Log()
    key = log.begin(b"branch")
    log.prepare(key, b"branch")
    log.append(Prepare(None, key, True, b"branch"))
    assert log.state.outcome(key).state is TransactionState.PREPARED


def test_deleting_a_queue_makes_open_transactions_that_touch_it_rollback_only() -> None:
    log = Log()
    gone, stays = log.queue("gone"), log.queue("stays")
    log.publish(message((gone,), b"x"))
    publishing, taking, elsewhere = log.begin(), log.begin(), log.begin()
    log.publish(message((gone, stays), b"both"), transaction=publishing)
    log.dequeue(gone, *gone.positions(), transaction=taking)
    log.publish(message((stays,), b"other"), transaction=elsewhere)
    log.append(DeleteQueue(None, gone.id))
    live = log.state.transactions.live
    assert [live[key].is_rollback_only for key in (publishing, taking, elsewhere)] == [True, True, False]
    for key in (publishing, taking):
        log.rollback(key)
    log.commit(elsewhere)
    assert bodies(stays) == [b"other"]
    check_invariants(log.state)


def test_a_prepared_branch_commits_what_is_left_when_a_queue_was_deleted() -> None:
    log = Log()
    gone, stays = log.queue("gone"), log.queue("stays")
    key = log.begin(b"branch")
    log.publish(message((gone, stays), b"both"), message((gone,), b"lost"), transaction=key)
    log.prepare(key, b"branch")
    log.append(DeleteQueue(None, gone.id))
    log.append(Commit(None, key))
    assert bodies(stays) == [b"both"]
    assert len(log.state.contents) == 1
    check_invariants(log.state)


def test_a_locked_message_is_not_taken_by_a_second_transaction() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"a"))
    (position,) = queue.positions()
    first, second = log.begin(), log.begin()
    log.dequeue(queue, position, transaction=first)
    log.dequeue(queue, position, transaction=second)
    log.commit(second)
    assert queue.locks == {position: first}
    log.rollback(first)
    assert bodies(queue) == [b"a"]


def test_recover_lists_prepared_and_heuristically_ended_branches_until_they_are_forgotten() -> None:
    log = Log()
    keys = [log.begin(xid) for xid in (b"a", b"b", b"c")]
    for key, xid in zip(keys, (b"a", b"b", b"c"), strict=True):
        log.prepare(key, xid)
    log.append(Commit(None, keys[0], is_heuristic=True))
    log.rollback(keys[1], RollbackReason.HEURISTIC)
    assert [(outcome.xid, outcome.state) for _, outcome in log.state.recover()] == [
        (b"a", TransactionState.HEURISTICALLY_COMMITTED),
        (b"b", TransactionState.HEURISTICALLY_ROLLED_BACK),
        (b"c", TransactionState.PREPARED),
    ]
