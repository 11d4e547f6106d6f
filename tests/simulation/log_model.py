"""The meaning of a committed log, in the plainest words: which message was where, from which index to which.

It is written independently of the state machine of `lockstep.core`, so that one finds the other's mistakes; it asks no replica.
Law: as DESIGN 3 and 4 say: a publish is visible from its own record on, or from the record that commits its transaction; a new
epoch aborts what is open unless it was handed over, a restarted one also drops what is not durable.
"""

from dataclasses import dataclass, field

from lockstep.core.frames import IndexedRecord
from lockstep.core.ids import Epoch, LogIndex, QueueId, QueuePosition, TransactionKey, place
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import (
    Begin,
    CloseSession,
    Commit,
    DeclareQueue,
    DeleteQueue,
    Dequeue,
    DequeueReason,
    EpochBegins,
    Move,
    OpenSession,
    Prepare,
    Publish,
    Rollback,
    RollbackReason,
)

FOREVER = LogIndex(1 << 62)
ABORTED_BY_EPOCH = -1
QUEUE_DELETED = -2
LOST_TRANSIENT = -3


@dataclass(slots=True)
class Copy:
    """One message in one queue. `removed` is the index that took it away, `FOREVER` while it is there."""

    queue: QueueId
    position: QueuePosition
    body: bytes
    is_durable: bool
    visible: LogIndex
    transaction: TransactionKey | None
    """The transaction that published it."""
    properties: bytes = b""
    priority: int = PRIORITY_DEFAULT
    is_moved: bool = False
    removed: LogIndex = FOREVER
    reason: int = 0
    """A `DequeueReason`, `QUEUE_DELETED` or `LOST_TRANSIENT`."""
    removed_by: TransactionKey | None = None
    locked: list[tuple[LogIndex, LogIndex]] = field(default_factory=list)
    """Index ranges [from, to) in which a transaction had it locked."""


@dataclass(slots=True)
class QueueLife:
    queue: QueueId
    name: str
    is_durable: bool
    declared: LogIndex
    deleted: LogIndex = FOREVER
    copies: dict[QueuePosition, Copy] = field(default_factory=dict)


@dataclass(slots=True)
class TransactionLife:
    """`ended` is the index of the record that ended it; 0: it is open or prepared."""

    key: TransactionKey
    xid: bytes = b""
    """Of a branch of a distributed transaction."""
    publishes: list[Publish] = field(default_factory=list)
    publish_durable: list[bool] = field(default_factory=list)
    dequeues: list[Dequeue] = field(default_factory=list)
    locked_at: list[LogIndex] = field(default_factory=list)
    is_prepared: bool = False
    is_committed: bool = False
    ended: LogIndex = field(default=LogIndex(0))
    reason: int = 0

    def lose_transients(self) -> None:
        """A restart: of what is prepared the durable part stays (T7)."""
        kept = [number for number, is_durable in enumerate(self.publish_durable) if is_durable]
        self.publishes = [self.publishes[number] for number in kept]
        self.publish_durable = [True] * len(kept)


class LogModel:
    """Fed with the records of one set's committed log, in order; then read by the checkers."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, QueueLife] = {}
        self.transactions: dict[TransactionKey, TransactionLife] = {}
        self.commands: dict[tuple[int, int], list[LogIndex]] = {}
        """(session, number) -> indexes of the records that answered it; more than one breaks P8."""
        self.sessions: dict[int, tuple[str, LogIndex, LogIndex]] = {}
        """key -> (session id, opened, closed)."""
        self.epochs: list[tuple[LogIndex, Epoch, bool]] = []
        """(index, epoch, is restarted)."""
        self.end = LogIndex(0)
        self.records = 0
        self.codes: dict[tuple[int, int], int] = {}

    def queues_named(self, name: str) -> list[QueueLife]:
        return [queue for queue in self.queues.values() if queue.name == name]

    def apply(self, indexed: IndexedRecord, epoch: Epoch) -> None:
        """Take the next record, which a frame of `epoch` carried."""
        index, record = indexed.index, indexed.record
        self.end = index
        self.records += 1
        if record.command is not None:
            self.commands.setdefault((record.command[0], record.command[1]), []).append(index)
        match record:
            case DeclareQueue():
                self.queues[QueueId(index)] = QueueLife(QueueId(index), record.name, record.is_durable, index)
            case DeleteQueue():
                self._delete_queue(index, record.queue)
            case Publish():
                self._publish(index, record, indexed.is_durable)
            case Dequeue():
                self._dequeue(index, record)
            case Move():
                self._move(index, record)
            case Begin():
                self._transaction((index, epoch)).xid = record.xid
            case Prepare():
                life = self._transaction(record.transaction)
                life.is_prepared = True
                life.xid = life.xid or record.xid
                if record.commit_when_prepared:
                    self._commit(index, life)
            case Commit():
                self._commit(index, self._transaction(record.transaction))
            case Rollback():
                life = self._transaction(record.transaction)
                counts_always = record.reason in (RollbackReason.COORDINATOR, RollbackReason.HEURISTIC)
                if not life.ended and (counts_always or not life.is_prepared):
                    self._end(index, life, False, record.reason)
            case OpenSession():
                self.sessions[index] = (record.session_id, index, FOREVER)
            case CloseSession():
                session_id, opened, _ = self.sessions.get(record.session, ("", LogIndex(0), FOREVER))
                self.sessions[record.session] = (session_id, opened, index)
            case EpochBegins():
                self._new_epoch(index, record)
            case _:
                pass

    def _transaction(self, key: TransactionKey) -> TransactionLife:
        key = (key[0], key[1])
        return self.transactions.setdefault(key, TransactionLife(key))

    def _publish(self, index: LogIndex, record: Publish, is_durable: bool) -> None:
        if record.transaction is not None:
            life = self._transaction(record.transaction)
            life.publishes.append(record)
            life.publish_durable.append(is_durable)
        else:
            self._show(index, record, is_durable, None)

    def _show(self, index: LogIndex, record: Publish, is_durable: bool, by: TransactionKey | None) -> None:
        for offset, message in enumerate(record.messages):
            position = QueuePosition(place(index, record.ordinal + offset))
            for queue_id in message.queues:
                queue = self.queues.get(queue_id)
                if queue is not None and queue.deleted == FOREVER:
                    durable = is_durable and queue.is_durable
                    queue.copies[position] = Copy(
                        queue_id,
                        position,
                        message.body,
                        durable,
                        index,
                        by,
                        message.properties,
                        message.priority,
                    )

    def _dequeue(self, index: LogIndex, record: Dequeue) -> None:
        if record.transaction is None:
            self._remove(index, record.queue, record.positions, record.reason, None)
            return
        life = self._transaction(record.transaction)
        life.dequeues.append(record)
        life.locked_at.append(index)

    def _remove(
        self,
        index: LogIndex,
        queue_id: QueueId,
        positions: tuple[QueuePosition, ...],
        reason: int,
        by: TransactionKey | None,
    ) -> None:
        queue = self.queues.get(queue_id)
        for position in positions if queue else ():
            assert queue is not None
            copy = queue.copies.get(position)
            if copy is not None and copy.removed == FOREVER:
                copy.removed, copy.reason, copy.removed_by = index, reason, by

    def _move(self, index: LogIndex, record: Move) -> None:
        source = self.queues.get(record.queue)
        for offset, position in enumerate(record.positions):
            copy = source.copies.get(position) if source else None
            if copy is None or copy.removed != FOREVER:
                continue
            copy.removed, copy.reason = index, record.reason
            for target_id in record.targets:
                target = self.queues.get(target_id)
                if target is not None and target.deleted == FOREVER:
                    moved = QueuePosition(place(index, record.ordinal + offset))
                    durable = copy.is_durable and target.is_durable
                    target.copies[moved] = Copy(
                        target_id,
                        moved,
                        copy.body,
                        durable,
                        index,
                        copy.transaction,
                        copy.properties,
                        copy.priority,
                        True,
                    )

    def _commit(self, index: LogIndex, life: TransactionLife) -> None:
        if life.ended:
            return
        for record, is_durable in zip(life.publishes, life.publish_durable, strict=True):
            self._show(index, record, is_durable, life.key)
        for dequeue in life.dequeues:
            self._remove(index, dequeue.queue, dequeue.positions, dequeue.reason, life.key)
        self._end(index, life, True, 0)

    def _end(self, index: LogIndex, life: TransactionLife, is_committed: bool, reason: int) -> None:
        life.ended, life.is_committed, life.reason = index, is_committed, reason
        for locked_at, dequeue in zip(life.locked_at, life.dequeues, strict=True):
            queue = self.queues.get(dequeue.queue)
            for position in dequeue.positions if queue else ():
                assert queue is not None
                copy = queue.copies.get(position)
                if copy is not None:
                    copy.locked.append((locked_at, index))

    def _delete_queue(self, index: LogIndex, queue_id: QueueId) -> None:
        queue = self.queues[queue_id]
        queue.deleted = index
        for copy in queue.copies.values():
            if copy.removed == FOREVER:
                copy.removed, copy.reason = index, QUEUE_DELETED

    def _new_epoch(self, index: LogIndex, record: EpochBegins) -> None:
        self.epochs.append((index, record.epoch, record.is_restarted))
        if record.is_handed_over:
            return
        for life in self.transactions.values():
            if not life.ended and not life.is_prepared:
                self._end(index, life, False, ABORTED_BY_EPOCH)
        if not record.is_restarted:
            return
        for life in self.transactions.values():
            if not life.ended:
                life.lose_transients()
        for queue in self.queues.values():
            if queue.deleted == FOREVER and not queue.is_durable:
                self._delete_queue(index, queue.queue)
            for copy in queue.copies.values():
                if copy.removed == FOREVER and not copy.is_durable:
                    copy.removed, copy.reason = index, LOST_TRANSIENT
        for key, (session_id, opened, closed) in self.sessions.items():
            if closed == FOREVER:
                self.sessions[key] = (session_id, opened, index)


ACCEPTED = DequeueReason.ACCEPTED
