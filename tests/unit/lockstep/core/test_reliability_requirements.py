"""The definitions of Reliability Requirements, one test each, and what survives a restart."""

from lockstep.core.ids import TransactionKey
from lockstep.core.invariants import check_invariants
from lockstep.core.records import Bind, Commit, OpenSession, RollbackReason
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import TransactionState
from tests.unit.lockstep.core.history import SET, Log, bodies, durable_replay, message


def restarted(log: Log) -> SetState:
    """The state after everything was killed: from the journal alone, with the first record of the next epoch."""
    log.flush()
    known = len(log.frames)
    survivor = Log(durable_replay(log.frames), epoch=log.epoch)
    survivor.begin_epoch(is_restarted=True)
    survivor.flush()
    # A primary that lived through it in memory, and was told that it restarted, stands where the journal does.
    log.begin_epoch(is_restarted=True)
    log.flush()
    assert len(log.frames) == known + 1
    assert list(log.state.items()) == list(survivor.state.items())
    check_invariants(survivor.state)
    return survivor.state


def test_a_durable_message_is_a_persistent_one_on_a_durable_queue() -> None:
    log = Log()
    durable, transient = log.queue("durable"), log.queue("transient", is_durable=False)
    log.publish(message((durable,), b"persistent"))
    log.publish(message((durable,), b"not persistent", is_durable=False), is_durable=False)
    log.publish(message((transient,), b"persistent, on a transient queue"), is_durable=False)
    state = restarted(log)
    assert bodies(state.queues.by_name["durable"]) == [b"persistent"]
    assert list(state.queues.by_name) == ["durable"]


def test_a_durable_enqueue_is_one_of_a_persistent_message_on_a_durable_queue() -> None:
    log = Log()
    durable, transient = log.queue("durable"), log.queue("transient", is_durable=False)
    log.publish(message((durable, transient), b"to both"))
    assert bodies(transient) == [b"to both"]
    (position,) = durable.positions()
    assert durable.is_entry_durable(position)
    assert not transient.is_entry_durable(position)
    assert bodies(restarted(log).queues.by_name["durable"]) == [b"to both"]


def test_a_durable_binding_joins_a_durable_exchange_and_a_durable_queue() -> None:
    log = Log()
    durable_queue, transient_queue = log.queue("dq"), log.queue("tq", is_durable=False)
    durable_exchange = log.exchange("dx", "fanout")
    transient_exchange = log.exchange("tx", "fanout", is_durable=False)
    for exchange in (durable_exchange, transient_exchange):
        for queue in (durable_queue, transient_queue):
            is_durable = exchange == durable_exchange and queue.is_durable
            log.append(Bind(None, exchange, queue.id, "k"), is_durable)
    assert log.state.route("dx", "k", {}) == (durable_queue.id, transient_queue.id)
    state = restarted(log)
    assert state.route("dx", "k", {}) == (durable_queue.id,)
    assert list(state.exchanges.by_name) == ["dx"]


def test_sessions_do_not_survive_a_restart() -> None:
    log = Log()
    log.append(OpenSession(None, "a-session", 30_000), is_durable=False)
    assert restarted(log).sessions.by_key == {}


def test_tx_and_unprepared_dtx_are_aborted_by_a_restart() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(message((queue,), b"stays"))
    (position,) = queue.positions()
    tx, dtx = log.begin(), log.begin(b"branch")
    log.publish(message((queue,), b"of the tx"), transaction=tx)
    log.dequeue(queue, position, transaction=dtx)
    state = restarted(log)
    assert bodies(state.queues.by_name["q"]) == [b"stays"]
    assert state.queues.by_name["q"].delivery_count(position) == 0
    assert state.transactions.live == {}
    assert [state.outcome(key).state for key in (tx, dtx)] == [TransactionState.ROLLED_BACK] * 2


def prepared_dtx_of_everything(log: Log) -> TransactionKey:
    """A prepared branch that enqueued and dequeued one durable and one transient message; its key."""
    queue = log.queue("q")
    log.publish(message((queue,), b"old durable"))
    log.publish(message((queue,), b"old transient", is_durable=False), is_durable=False)
    durable, transient = queue.positions()
    key = log.begin(b"branch")
    log.publish(message((queue,), b"new durable"), transaction=key)
    log.publish(message((queue,), b"new transient", is_durable=False), transaction=key, is_durable=False)
    log.dequeue(queue, durable, transaction=key)
    log.dequeue(queue, transient, transaction=key, is_durable=False)
    log.prepare(key, b"branch")
    assert bodies(queue) == []
    return key


def test_a_prepared_dtx_survives_a_restart_with_its_locks() -> None:
    log = Log()
    key = prepared_dtx_of_everything(log)
    state = restarted(log)
    assert [(found, outcome.xid) for found, outcome in state.recover()] == [(key, b"branch")]
    queue = state.queues.by_name["q"]
    assert (queue.length, queue.unlocked_length, queue.reserved_length) == (1, 0, 1)
    assert bodies(queue) == []


def test_on_commit_after_a_restart_non_durable_messages_enqueued_are_lost() -> None:
    log = Log()
    key = prepared_dtx_of_everything(log)
    after = Log(restarted(log), epoch=log.epoch)
    after.append(Commit(None, key))
    assert bodies(after.state.queues.by_name["q"]) == [b"new durable"]
    check_invariants(after.state)


def test_on_rollback_after_a_restart_non_durable_messages_dequeued_are_lost() -> None:
    log = Log()
    key = prepared_dtx_of_everything(log)
    after = Log(restarted(log), epoch=log.epoch)
    after.rollback(key, RollbackReason.COORDINATOR)
    queue = after.state.queues.by_name["q"]
    assert bodies(queue) == [b"old durable"]
    assert queue.delivery_counts == {queue.head(): 1}
    check_invariants(after.state)


def test_a_failover_keeps_what_is_not_durable_and_prepared() -> None:
    log = Log()
    key = prepared_dtx_of_everything(log)
    log.begin_epoch()
    log.append(Commit(None, key))
    assert bodies(log.state.queues.by_name["q"]) == [b"new durable", b"new transient"]
    check_invariants(log.state)


def test_a_committed_tx_without_an_outcome_record_is_committed_after_a_restart() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.publish(message((queue,), b"one"), message((queue,), b"two"), transaction=key)
    log.commit(key)
    state = restarted(log)
    assert bodies(state.queues.by_name["q"]) == [b"one", b"two"]
    assert state.outcome(key).state is TransactionState.COMMITTED


def test_a_tx_of_transients_alone_is_committed_after_a_restart_and_its_effects_are_lost() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.publish(message((queue,), b"gone", is_durable=False), transaction=key, is_durable=False)
    log.commit(key)
    state = restarted(log)
    assert bodies(state.queues.by_name["q"]) == []
    assert state.outcome(key).state is TransactionState.COMMITTED


def test_the_newest_state_can_be_built_from_its_own_durable_items() -> None:
    log = Log()
    prepared_dtx_of_everything(log)
    log.flush()
    rebuilt = SetState.from_items(SET, log.state.items(transient=False))
    assert list(rebuilt.items(transient=False)) == list(log.state.items(transient=False))
