"""From frames to committed transactions: collects what open transactions have in the log, until the record that ends them.

Law: what a record does here is what it does in the state machine (`lockstep/core/apply_*.py`), as far as it is durable; the
simulator compares the two. A builder may begin anywhere in a log. When a transaction ends that began before, it has to be
shown the log from there on first (`earlier_needed`). A transaction is told whole or not at all: the record that ends it says how
many durable ones it has, and if the log has not got them any more, nobody is told that there were less (`ContentGone`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lockstep.core.apply_messages import shares_of
from lockstep.core.frames import FrameHeader, IndexedRecord, decode_records, read_frame
from lockstep.core.ids import Epoch, LogIndex, QueueId, SessionKey, TimeMs, TransactionKey, place
from lockstep.core.records import (
    Commit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Dequeue,
    DequeueReason,
    EpochBegins,
    Message,
    Move,
    Prepare,
    Publish,
    Rollback,
    RollbackReason,
)
from services.broker.core.events.transactions import CommittedTransaction, Effects, EventKind

_ENDS_PREPARED = (RollbackReason.COORDINATOR, RollbackReason.HEURISTIC)
_NO_SESSION = SessionKey(0)
_KINDS = {
    DequeueReason.EXPIRED: EventKind.EXPIRE,
    DequeueReason.EVICTED: EventKind.EXPIRE,
}


class DecodedFrame(NamedTuple):
    """A frame's durable records in log order."""

    header: FrameHeader
    records: list[IndexedRecord]

    @classmethod
    def of(cls, durable: bytes) -> "DecodedFrame":
        """From a journal's bytes; raises `BadFrame`."""
        frame = read_frame(durable, b"")
        return cls(frame.header, decode_records(frame))


class ContentGone(Exception):
    """What a transaction wrote first is not in the log any more."""

    def __init__(self, key: TransactionKey, end: LogIndex) -> None:
        super().__init__(f"what transaction {key[0]}.{key[1]}, which ends at {end}, wrote first is gone")
        self.key = key
        self.end = end
        """Of the record that ended it."""


class Names(Protocol):
    """What durable queues and exchanges are called; a state has it (`StateNames`)."""

    def queue(self, queue: QueueId, at: LogIndex) -> str | None:
        """The name of a durable queue that exists at `at`; None for one that was deleted before."""

    def exchange(self, exchange: int) -> str:
        """ "" if it is gone."""


@dataclass(slots=True)
class _Open:
    """What the log has shown of a transaction without an end."""

    key: TransactionKey
    started_ms: TimeMs
    xid: bytes = b""
    resource_sets: tuple[str, ...] = ()
    is_prepared: bool = False
    operations: list[Publish | Dequeue] = field(default_factory=list)

    @property
    def durable_records(self) -> int:
        """As the record says it that ends it."""
        return len(self.operations) + self.is_prepared


class EventBuilder:
    """Of one log, from one index on; whoever reads the log feeds it frame by frame."""

    def __init__(self, names: Names, after: LogIndex, *, is_collecting: bool = False) -> None:
        """`is_collecting`: it only learns of open transactions, for another one."""
        self.position = after
        """Everything at or below it was taken, or lies before the beginning."""
        self._names = names
        self._is_collecting = is_collecting
        self.known_after = after
        """Open transactions are known from here on."""
        self._asked_after = after
        """It was shown whatever is kept of what lies between here and there."""
        self._open: dict[TransactionKey, _Open] = {}

    def earlier_needed(self, frame: DecodedFrame) -> LogIndex | None:
        """Feed `show_earlier` the log behind this index first; None: nothing is lacking."""
        begins = [
            record.transaction[0]
            for indexed in frame.records
            if isinstance(record := indexed.record, Prepare | Commit | Rollback)
        ]
        first = min(begins, default=None)
        return LogIndex(first - 1) if first is not None and first <= self._asked_after else None

    def show_earlier(
        self, after: LogIndex, frames: Sequence[DecodedFrame], lowest: LogIndex = LogIndex(0)
    ) -> None:
        """All frames from the one with `after` + 1 on, up to where this builder knows the log from.

        `lowest`: they begin only there, as what lies before is not kept. That need not matter: a `begin` is transient, so a store
        keeps no segment for it.
        """
        first = LogIndex(max(after, lowest - 1))
        if first < self.known_after:
            earlier = EventBuilder(self._names, first, is_collecting=True)
            for frame in frames:
                earlier.feed(frame, until=self.known_after)
            assert earlier.position >= self.known_after, (
                f"{earlier.position} leaves a gap to {self.known_after}"
            )
            self._take_over(earlier)
            self.known_after = first
        self._asked_after = after

    def _take_over(self, earlier: "EventBuilder") -> None:
        for key, found in earlier._open.items():
            known = self._open.get(key)
            if known is not None:
                found.operations += known.operations
                found.xid, found.is_prepared = known.xid or found.xid, known.is_prepared or found.is_prepared
                found.resource_sets = known.resource_sets or found.resource_sets
            self._open[key] = found

    def feed(self, frame: DecodedFrame, until: LogIndex | None = None) -> list[CommittedTransaction]:
        """What the frame's records up to `until` (None: all) committed, in order.

        Raises `ContentGone` for a transaction that ends there and is not all known: the builder is good for nothing then.
        """
        header, committed = frame.header, []
        for indexed in frame.records:
            if indexed.index <= self.position:
                continue
            if until is not None and indexed.index > until:
                break
            take = _TAKE.get(type(indexed.record))
            if take is not None:
                done: CommittedTransaction | None = take(self, indexed, header.epoch, header.time_ms)
                if done is not None and not self._is_collecting and done.effects:
                    committed.append(done)
        self.position = max(self.position, header.last if until is None else min(until, header.last))
        return committed

    # --- transactions -------------------------------------------------------------------------------------------------

    def _of(self, key: TransactionKey, time_ms: TimeMs) -> _Open:
        known = self._open.get(key)
        if known is None:
            known = self._open[key] = _Open(key, time_ms)
        return known

    def _publish(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        if record.transaction is not None:
            self._of(record.transaction, time_ms).operations.append(record)
            return None
        done = self._command(indexed, epoch, time_ms)
        done.effects = self._enqueued(indexed.index, record.ordinal, record.messages)
        return done

    def _dequeue(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        if record.transaction is not None:
            self._of(record.transaction, time_ms).operations.append(record)
            return None
        done = self._command(indexed, epoch, time_ms)
        done.effects = self._dequeued(indexed.index, record)
        return done

    def _prepare(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        branch = self._of(record.transaction, time_ms)
        if branch.is_prepared:
            return None
        branch.xid, branch.resource_sets = record.xid, record.resource_sets
        if record.commit_when_prepared:
            self._check_whole(indexed, branch)
            return self._ended(indexed, epoch, time_ms, branch)
        branch.is_prepared = True
        return None

    def _commit(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        branch = self._open.get(record.transaction)
        self._check_whole(indexed, branch)
        if branch is None or not branch.is_prepared:
            return None
        done = self._ended(indexed, epoch, time_ms, branch)
        done.is_joint, done.is_heuristic = True, record.is_heuristic
        return done

    def _check_whole(self, indexed: IndexedRecord, found: _Open | None) -> None:
        """Raises `ContentGone` unless all is known of the transaction that this record ends; a collector needs not know it."""
        record: Any = indexed.record
        key = record.transaction
        if record.durable_records >= 0:
            is_whole = record.durable_records == (found.durable_records if found is not None else 0)
        elif key[0] > self.known_after:
            is_whole = True
        else:
            # Of an older version: its first durable record may be recognised by its ordinal, and a commit has a prepare.
            is_whole = not isinstance(record, Commit) if found is None else _begins_with_first(found)
        if not is_whole and not self._is_collecting:
            raise ContentGone(key, indexed.index)

    def _ended(
        self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs, open_one: _Open
    ) -> CommittedTransaction:
        del self._open[open_one.key]
        done = self._command(indexed, epoch, time_ms)
        done.key, done.started_ms = open_one.key, open_one.started_ms
        done.xid, done.resource_sets = open_one.xid, open_one.resource_sets
        for operation in open_one.operations:
            if isinstance(operation, Publish):
                done.effects += self._enqueued(done.index, operation.ordinal, operation.messages)
            else:
                done.effects += self._dequeued(done.index, operation)
        return done

    def _rollback(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        open_one = self._open.get(record.transaction)
        if open_one is not None and open_one.is_prepared and record.reason not in _ENDS_PREPARED:
            return None
        self._check_whole(indexed, open_one)
        if open_one is None:
            return None  # It ended with its epoch, or nothing was done in it.
        done = self._command(indexed, epoch, time_ms)
        done.key, done.rollback_reason = record.transaction, record.reason
        del self._open[open_one.key]
        done.started_ms, done.xid = open_one.started_ms, open_one.xid
        done.resource_sets = open_one.resource_sets
        done.is_heuristic = record.reason == RollbackReason.HEURISTIC
        for operation in open_one.operations:
            if isinstance(operation, Publish):
                done.undone_publishes += len(operation.messages)
            else:
                done.undone_accepts += len(operation.positions)
        done.effects = [Effects(EventKind.ROLLBACK, 0, "")]
        return done

    def _epoch_begins(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> None:
        """Open transactions are aborted, unless the set was handed over; what was prepared stays."""
        record: Any = indexed.record
        if record.is_handed_over:
            return
        self._open = {key: open_one for key, open_one in self._open.items() if open_one.is_prepared}

    # --- effects ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _command(indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction:
        command = indexed.record.command
        session = command.session if command is not None else _NO_SESSION
        return CommittedTransaction(indexed.index, epoch, time_ms, time_ms, session)

    def _enqueued(self, at: LogIndex, ordinal: int, messages: Sequence[Message]) -> list[Effects]:
        found: list[Effects] = []
        if not messages:
            return found
        first = place(at, ordinal)
        for share in shares_of(messages):
            name = self._names.queue(share.queue, at)
            if name is None:
                continue
            if share.places is None:
                positions: Sequence[int] = range(first, first + len(messages))
                chosen = messages
            else:
                positions = [first + number for number in share.places]
                chosen = [messages[number] for number in share.places]
            found.append(Effects(EventKind.ENQUEUE, share.queue, name, positions, chosen))
        return found

    def _dequeued(self, at: LogIndex, record: Dequeue) -> list[Effects]:
        name = self._names.queue(record.queue, at)
        if name is None or not record.positions:
            return []
        kind = _KINDS.get(record.reason, EventKind.DEQUEUE)
        return [Effects(kind, record.queue, name, record.positions, reason=record.reason)]

    def _move(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        at = indexed.index
        name = self._names.queue(record.queue, at)
        if name is None or not record.positions:
            return None
        done = self._command(indexed, epoch, time_ms)
        done.effects.append(
            Effects(EventKind.DEAD_LETTER, record.queue, name, record.positions, reason=record.reason)
        )
        first = place(at, record.ordinal)
        positions = range(first, first + len(record.positions))
        for number, target in enumerate(record.targets):
            target_name = self._names.queue(target, at)
            if target_name is not None:
                expires_ms = record.expires_ms[number] if record.expires_ms else 0
                done.effects.append(
                    Effects(
                        EventKind.ENQUEUE,
                        target,
                        target_name,
                        positions,
                        sources=record.positions,
                        expires_ms=expires_ms,
                    )
                )
        return done

    def _declare_queue(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction:
        record: Any = indexed.record
        done = self._command(indexed, epoch, time_ms)
        done.effects = [Effects(EventKind.DECLARE, indexed.index, record.name)]
        return done

    def _delete_queue(
        self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs
    ) -> CommittedTransaction | None:
        record: Any = indexed.record
        name = self._names.queue(record.queue, LogIndex(indexed.index - 1))
        if name is None:
            return None
        done = self._command(indexed, epoch, time_ms)
        done.effects = [Effects(EventKind.DELETE, record.queue, name)]
        return done

    def _declare_exchange(
        self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs
    ) -> CommittedTransaction:
        record: Any = indexed.record
        done = self._command(indexed, epoch, time_ms)
        done.effects = [Effects(EventKind.DECLARE, indexed.index, record.name, is_exchange=True)]
        return done

    def _delete_exchange(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction:
        record: Any = indexed.record
        done = self._command(indexed, epoch, time_ms)
        name = self._names.exchange(record.exchange)
        done.effects = [Effects(EventKind.DELETE, record.exchange, name, is_exchange=True)]
        return done


def _begins_with_first(found: _Open) -> bool:
    return not found.operations or found.operations[0].ordinal == 0


_TAKE: dict[type, Callable[..., CommittedTransaction | None]] = {
    Publish: EventBuilder._publish,
    Dequeue: EventBuilder._dequeue,
    Move: EventBuilder._move,
    Prepare: EventBuilder._prepare,
    Commit: EventBuilder._commit,
    Rollback: EventBuilder._rollback,
    EpochBegins: EventBuilder._epoch_begins,
    DeclareQueue: EventBuilder._declare_queue,
    DeleteQueue: EventBuilder._delete_queue,
    DeclareExchange: EventBuilder._declare_exchange,
    DeleteExchange: EventBuilder._delete_exchange,
}
