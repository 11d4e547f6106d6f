"""What a listener hears."""

from collections.abc import Sequence

from lockstep.core.ids import QueuePosition, SessionKey, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.queues import Queue
from lockstep.core.records import (
    AcceptCommand,
    CloseSession,
    CommandRef,
    DeleteQueue,
    DequeueReason,
    Move,
    OpenSession,
    Requeue,
    RollbackReason,
)
from lockstep.core.sessions import Answer, Session
from lockstep.core.set_state import SetState
from lockstep.core.state_listener import StateListener
from lockstep.core.transaction_states import TransactionState
from tests.unit.lockstep.core.history import SET, Log, message


class Diary(StateListener):
    """Writes down what it hears, in words."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def enqueued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self.heard.append(("enqueued", queue.name, len(positions)))

    def dequeued(
        self,
        queue: Queue,
        positions: Sequence[QueuePosition],
        reason: int,
        transaction: TransactionKey | None,
    ) -> None:
        self.heard.append(("dequeued", queue.name, len(positions), reason, transaction))

    def unlocked(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self.heard.append(("unlocked", queue.name, list(positions)))

    def requeued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self.heard.append(("requeued", queue.name, list(positions)))

    def queue_declared(self, queue: Queue) -> None:
        self.heard.append(("declared", queue.name))

    def queue_deleted(self, queue: Queue) -> None:
        self.heard.append(("deleted", queue.name))

    def session_opened(self, session: Session) -> None:
        self.heard.append(("opened", session.id))

    def session_closed(self, session: Session) -> None:
        self.heard.append(("closed", session.id))

    def transaction_ended(self, key: TransactionKey, outcome: Outcome) -> None:
        self.heard.append(("ended", key, outcome.state, outcome.reason))

    def answered(self, session: SessionKey, number: int, answer: Answer) -> None:
        self.heard.append(("answered", session, number, answer.value))

    def told(self) -> list[object]:
        """What it heard since it was asked last."""
        heard, self.heard = self.heard, []
        return heard


def log_with_diary() -> tuple[Log, Diary]:
    diary = Diary()
    return Log(SetState(SET, diary)), diary


def test_a_commit_is_heard_once_per_queue_after_all_of_it_has_happened() -> None:
    log, diary = log_with_diary()
    one, two = log.queue("one"), log.queue("two")
    log.publish(message((one,)), message((one,)))
    key = log.begin()
    for _ in range(3):
        log.publish(message((one, two)), transaction=key)
    for position in one.positions():
        log.dequeue(one, position, transaction=key)
    assert diary.told() == [("declared", "one"), ("declared", "two"), ("enqueued", "one", 2)]
    log.commit(key)
    assert diary.told() == [
        ("dequeued", "one", 2, DequeueReason.ACCEPTED, key),
        ("enqueued", "one", 3),
        ("enqueued", "two", 3),
        ("ended", key, TransactionState.COMMITTED, 0),
    ]


def test_rollback_and_abort_are_heard_as_unlocked_messages_in_order() -> None:
    log, diary = log_with_diary()
    queue = log.queue("q")
    log.publish(*(message((queue,)) for _ in range(3)))
    first, second, third = queue.positions()
    rolled_back, aborted = log.begin(), log.begin()
    log.dequeue(queue, second, transaction=rolled_back)
    log.dequeue(queue, first, transaction=rolled_back)
    log.dequeue(queue, third, transaction=aborted)
    diary.told()
    log.rollback(rolled_back)
    log.begin_epoch()
    assert diary.told() == [
        ("unlocked", "q", [first, second]),
        ("ended", rolled_back, TransactionState.ROLLED_BACK, RollbackReason.CLIENT),
        ("unlocked", "q", [third]),
        ("ended", aborted, TransactionState.ROLLED_BACK, RollbackReason.FAILOVER),
    ]


def test_moving_requeuing_taking_and_deleting_are_heard() -> None:
    log, diary = log_with_diary()
    queue, letters = log.queue("q"), log.queue("letters")
    log.publish(message((queue,)), message((queue,)), message((queue,)))
    first, second, third = queue.positions()
    diary.told()
    log.append(Requeue(None, queue.id, (first,)))
    log.append(Move(None, 0, queue.id, (first,), (letters.id,), DequeueReason.EXPIRED))
    log.dequeue(queue, second, reason=DequeueReason.PURGED)
    log.append(DeleteQueue(None, queue.id))
    assert diary.told() == [
        ("requeued", "q", [first]),
        ("dequeued", "q", 1, DequeueReason.EXPIRED, None),
        ("enqueued", "letters", 1),
        ("dequeued", "q", 1, DequeueReason.PURGED, None),
        ("deleted", "q"),
    ]
    assert third not in queue


def test_sessions_and_answers_are_heard() -> None:
    log, diary = log_with_diary()
    key = SessionKey(log.append(OpenSession(None, "s", 1), is_durable=False))
    log.append(AcceptCommand(CommandRef(key, 1), 9), is_durable=False)
    log.append(CloseSession(CommandRef(key, 2), key), is_durable=False)
    assert diary.told() == [
        ("opened", "s"),
        ("answered", key, 1, 9),
        ("closed", "s"),
        ("answered", key, 2, 0),
    ]


def test_what_a_restart_loses_is_heard() -> None:
    log, diary = log_with_diary()
    durable = log.queue("durable")
    log.queue("transient", is_durable=False)
    log.publish(message((durable,), is_durable=False), is_durable=False)
    log.append(OpenSession(None, "s", 1), is_durable=False)
    diary.told()
    log.begin_epoch(is_restarted=True)
    assert diary.told() == [
        ("closed", "s"),
        ("dequeued", "durable", 1, DequeueReason.LOST, None),
        ("deleted", "transient"),
    ]


def test_a_listener_may_come_later_and_go() -> None:
    log, diary = log_with_diary()
    log.state.set_listener(None)
    queue = log.queue("q")
    log.state.set_listener(diary)
    log.publish(message((queue,)))
    assert diary.told() == [("enqueued", "q", 1)]
    assert log.state.changes.listener is None, "nobody asked for items, so no keys are made"
