"""Sessions and the answers that the state machine derives (DESIGN 6)."""

import msgspec

from lockstep.core.commands import ANSWERS_KEPT
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueueId, SessionId, SessionKey
from lockstep.core.item_values import SessionValue, decode_queue, decode_session, encode
from lockstep.core.records import (
    AcceptCommand,
    Begin,
    CloseSession,
    CommandRef,
    Commit,
    Consume,
    DeclareQueue,
    DeleteQueue,
    Dequeue,
    OpenSession,
    Prepare,
    Publish,
    RejectCommand,
    Rollback,
    RollbackReason,
    UseQueue,
)
from lockstep.core.sessions import Answer, DtxUse
from lockstep.core.transaction_states import TransactionState
from tests.unit.lockstep.core.history import Log, bodies, message


def open_session(log: Log, name: str = "a-session") -> SessionKey:
    return SessionKey(log.append(OpenSession(None, name, 30_000), is_durable=False))


def answers(log: Log, key: SessionKey) -> dict[int, Answer]:
    return log.state.sessions.by_key[key].answers


def test_a_session_is_named_by_the_record_that_opened_it() -> None:
    log = Log()
    log.begin_epoch()
    key = open_session(log)
    session = log.state.sessions.find(SessionId("a-session"))
    assert session is not None
    assert (session.key, session.epoch, session.next_number) == (key, 1, 1)


def test_an_id_opened_again_is_another_session() -> None:
    log = Log()
    first, second = open_session(log), open_session(log)
    found = log.state.sessions.find(SessionId("a-session"))
    assert found is not None and found.key == second
    log.append(CloseSession(None, second), is_durable=False)
    assert log.state.sessions.find(SessionId("a-session")) is None
    assert list(log.state.sessions.by_key) == [first]


def test_answers_tell_what_was_declared_begun_published_and_taken() -> None:
    log = Log()
    key = open_session(log)
    queue_id = log.append(DeclareQueue(CommandRef(key, 1), "q", True))
    queue = log.state.queues.by_name["q"]
    published = log.append(Publish(CommandRef(key, 2), None, 0, (message((queue,)), message((queue,)))))
    begun = log.append(Begin(CommandRef(key, 3), key), is_durable=False)
    taken = log.append(Dequeue(CommandRef(key, 4), None, 0, queue.id, tuple(queue.positions(0, 1))))
    deleted = log.append(DeleteQueue(CommandRef(key, 5), queue.id))
    assert answers(log, key) == {
        1: Answer(queue_id, value=queue_id),
        2: Answer(published, value=2),
        3: Answer(begun, value=begun),
        4: Answer(taken, value=1),
        5: Answer(deleted, value=1),
    }


def test_the_answer_to_a_commit_is_the_outcome() -> None:
    log = Log()
    key = open_session(log)
    committed, rolled_back = log.begin(session=key), log.begin(session=key)
    log.rollback(rolled_back, RollbackReason.TIMED_OUT)
    log.append(Prepare(CommandRef(key, 1), committed, True))
    log.append(Prepare(CommandRef(key, 2), rolled_back, True))
    assert answers(log, key)[1].value == TransactionState.COMMITTED
    assert (answers(log, key)[1].code, answers(log, key)[2].code) == (ErrorCode.NONE, ErrorCode.ROLLED_BACK)


def test_an_end_repeated_is_answered_like_the_first() -> None:
    log = Log()
    key = open_session(log)
    committed, rolled_back = log.begin(b"c"), log.begin(b"r")
    for transaction, xid in ((committed, b"c"), (rolled_back, b"r")):
        log.prepare(transaction, xid)
    for number in (1, 2):
        log.append(Commit(CommandRef(key, number), committed))
    for number in (3, 4):
        log.append(Rollback(CommandRef(key, number), rolled_back, RollbackReason.COORDINATOR))
    assert [answer.code for answer in answers(log, key).values()] == [ErrorCode.NONE] * 4


def test_the_other_end_of_a_finished_transaction_is_refused() -> None:
    log = Log()
    key = open_session(log)
    committed, rolled_back, prepared = log.begin(b"c"), log.begin(b"r"), log.begin(b"p")
    log.commit(committed, b"c")
    log.rollback(rolled_back)
    log.prepare(prepared, b"p")
    log.append(Rollback(CommandRef(key, 1), committed, RollbackReason.CLIENT))
    log.append(Commit(CommandRef(key, 2), rolled_back))
    log.append(Rollback(CommandRef(key, 3), prepared, RollbackReason.CLIENT))
    assert [answer.code for answer in answers(log, key).values()] == [
        ErrorCode.TRANSACTION_FINISHED,
        ErrorCode.ROLLED_BACK,
        ErrorCode.ILLEGAL_STATE,
    ]


def test_a_rejected_command_consumes_its_number_and_keeps_its_error() -> None:
    log = Log()
    key = open_session(log)
    index = log.append(RejectCommand(CommandRef(key, 1), ErrorCode.QUEUE_FULL, "full"), is_durable=False)
    assert answers(log, key) == {1: Answer(index, ErrorCode.QUEUE_FULL, "full")}
    assert log.state.sessions.by_key[key].next_number == 2


def test_only_the_last_answers_are_kept() -> None:
    log = Log()
    key = open_session(log)
    for number in range(1, ANSWERS_KEPT + 11):
        log.append(AcceptCommand(CommandRef(key, number), number), is_durable=False)
    kept = answers(log, key)
    assert (len(kept), min(kept), max(kept)) == (ANSWERS_KEPT, 11, ANSWERS_KEPT + 10)


def test_a_record_for_an_unknown_session_is_applied_without_an_answer() -> None:
    log = Log()
    queue = log.queue("q")
    log.append(Publish(CommandRef(SessionKey(77), 1), None, 0, (message((queue,), b"a"),)))
    assert bodies(queue) == [b"a"]
    assert log.state.sessions.by_key == {}


def test_closing_a_session_forgets_it_and_closing_it_again_changes_nothing() -> None:
    log = Log()
    key = open_session(log)
    for _ in range(2):
        log.append(CloseSession(None, key), is_durable=False)
    assert log.state.sessions.get(key) is None


def test_branches_of_a_session_are_found() -> None:
    log = Log()
    key, other = open_session(log), open_session(log, "other")
    mine = log.begin(b"x", session=key)
    log.begin(session=key)
    log.begin(b"y", session=other)
    assert [branch.key for branch in log.state.transactions.branches_of(key)] == [mine]


def test_a_session_knows_what_it_consumed_of_what_is_there() -> None:
    log = Log()
    key = open_session(log)
    first, second, third = [log.queue(name, is_auto_delete=True) for name in ("1", "2", "3")]
    for queue in (first, second, first):
        log.append(Consume(None, key, queue.id), is_durable=False)
    assert list(log.state.sessions.by_key[key].consumed) == [first.id, second.id]
    log.append(DeleteQueue(None, first.id))
    log.append(Consume(None, key, third.id), is_durable=False)
    assert list(log.state.sessions.by_key[key].consumed) == [second.id, third.id]
    log.append(Consume(None, SessionKey(99), third.id), is_durable=False)


def test_a_restart_leaves_of_consumers_that_a_durable_queue_had_one() -> None:
    log = Log()
    key = open_session(log)
    queue, unused = log.queue("q", is_auto_delete=True), log.queue("unused", is_auto_delete=True)
    log.append(UseQueue(None, queue.id))
    log.append(Consume(None, key, queue.id), is_durable=False)
    log.append(UseQueue(None, unused.id), is_durable=False)
    log.begin_epoch(is_restarted=True)
    assert not log.state.sessions.by_key
    assert queue.definition.is_used and not unused.definition.is_used


def test_sessions_and_queues_in_snapshots_of_older_versions_say_nothing_of_consumers() -> None:
    value = SessionValue(SessionId("a"), Epoch(1), 30_000, 1, (), DtxUse.NONE, (QueueId(7),))
    assert decode_session(encode(value)) == value
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(value))[:-1])
    assert decode_session(older).consumed == ()
    queue = DeclareQueue(None, "q", True, is_auto_delete=True, is_used=True)
    assert decode_queue(encode(queue)) == queue
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(queue))[:-1])
    assert not decode_queue(older).is_used
