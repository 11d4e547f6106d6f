"""From frames to committed transactions: collects what open transactions have in the log, until the record that ends them.

Law: what a record does here is what it does in the state machine (`lockstep/core/apply_*.py`), as far as it is durable; the
simulator compares the two. A builder may begin anywhere in a log. When a transaction ends that began before (`earlier_needed`),
a collector has to go through the log from there on first, and the builder takes over what is open where it began itself
(`take_earlier`). A transaction is told whole or not at all: the record that ends it says how many durable ones it has, and if the
log has not got them any more, nobody is told that there were less (`ContentGone`).
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from lockstep.core.frames import FrameHeader, IndexedRecord, decode_records, read_frame
from lockstep.core.ids import Epoch, LogIndex, SessionKey, TimeMs, TransactionKey
from lockstep.core.pieces import at_once
from lockstep.core.records import (
    AnyRecord,
    Commit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Dequeue,
    EpochBegins,
    Move,
    Prepare,
    Publish,
    Rollback,
    RollbackReason,
)
from services.broker.core.events.open_transactions import OpenTransaction, OpenTransactions
from services.broker.core.events.record_effects import Names, effects_of
from services.broker.core.events.transactions import CommittedTransaction, Effects, EventKind

_ENDS_PREPARED = (RollbackReason.COORDINATOR, RollbackReason.HEURISTIC)
_NO_SESSION = SessionKey(0)


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


class EventBuilder:
    """Of one log, from one index on; whoever reads the log feeds it frame by frame. As a collector, it learns for another one
    which transactions are open where that begins, and says nothing of what they commit."""

    def __init__(self, names: Names, after: LogIndex, *, is_collecting: bool = False) -> None:
        self.position = after
        """Everything at or below it was taken, or lies before the beginning."""
        self._names = names
        self._is_collecting = is_collecting
        self.known_after = after
        """Open transactions are known from here on."""
        self._asked_after = after
        """It has taken whatever is kept of what lies between here and there."""
        self.collected_bytes = 0
        """Of the log that it took as a collector."""
        self._open = OpenTransactions()
        self._operations: Sequence[AnyRecord] = ()
        """Of what the last record ended: their effects are found next."""

    def copy(self, *, is_collecting: bool = False) -> "EventBuilder":
        """One that stands at the same place; each of the two goes its own way."""
        made = EventBuilder(self._names, self.position, is_collecting=is_collecting)
        made.known_after, made._asked_after = self.known_after, self._asked_after
        made.collected_bytes = self.collected_bytes
        made._open = self._open.copy()
        return made

    # --- what lies before the beginning -------------------------------------------------------------------------------

    def earlier_needed(self, frame: DecodedFrame) -> LogIndex | None:
        """`take_earlier` first what is behind this index; None: the frame may be fed."""
        begins = [
            record.transaction[0]
            for indexed in frame.records
            if isinstance(record := indexed.record, Prepare | Commit | Rollback)
        ]
        first = min(begins, default=None)
        return LogIndex(first - 1) if first is not None and first <= self._asked_after else None

    def collect(self, frame: DecodedFrame, until: LogIndex) -> None:
        """Take the next frame, of an earlier part that ends at `until`. Most of a log is done outside of transactions: nothing is
        to be learnt from that."""
        assert self._is_collecting, "what is committed would be told to nobody"
        records = [
            indexed
            for indexed in frame.records
            if isinstance(indexed.record, EpochBegins) or getattr(indexed.record, "transaction", None)
        ]
        self.feed(DecodedFrame(frame.header, records), until)
        self.collected_bytes += frame.header.frame_bytes

    def take_earlier(self, after: LogIndex, collector: "EventBuilder | None") -> None:
        """What `collector` has learnt, which took all that is kept of the log behind `after` up to `known_after`; it stays as it
        is. None: nothing is kept there.

        That it began behind `after` need not matter: a `begin` is transient, so a store keeps no segment for it.
        """
        if collector is not None:
            assert collector.position == self.known_after, f"{collector.position} is not {self.known_after}"
            self._open.precede(collector._open)
            self.known_after = collector.known_after
        self._asked_after = after

    # --- frames -------------------------------------------------------------------------------------------------------

    def feed(self, frame: DecodedFrame, until: LogIndex | None = None) -> list[CommittedTransaction]:
        """What the frame's records up to `until` (None: all) committed, in order; joint commits also where they have no effect.

        Raises `ContentGone` for a transaction that ends there and is not all known: the builder is good for nothing then.
        """
        return at_once(self.feed_in_steps(frame, until))

    def feed_in_steps(
        self, frame: DecodedFrame, until: LogIndex | None = None
    ) -> Generator[None, None, list[CommittedTransaction]]:
        """The same in steps, of one record each: what a transaction published may go to very many queues."""
        header, committed = frame.header, []
        for indexed in frame.records:
            if indexed.index <= self.position:
                continue
            if until is not None and indexed.index > until:
                break
            take = _TAKE.get(type(indexed.record))
            if take is not None:
                done: CommittedTransaction | None = take(self, indexed, header.epoch, header.time_ms)
                operations, self._operations = self._operations, ()
                if done is None or self._is_collecting:
                    continue
                for operation in operations:
                    done.effects += effects_of(operation, done.index, self._names)
                    yield
                if done.effects or done.is_joint:
                    committed.append(done)
        self.position = max(self.position, header.last if until is None else min(until, header.last))
        return committed

    def _operation(
        self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs
    ) -> CommittedTransaction | None:
        record: Any = indexed.record
        if record.transaction is None:
            return self._alone(indexed, epoch, time_ms)
        self._open.change(record.transaction, time_ms).operations.append(record)
        return None

    def _alone(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction:
        """A command outside of any transaction."""
        done = self._command(indexed, epoch, time_ms)
        self._operations = (indexed.record,)
        return done

    @staticmethod
    def _command(indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction:
        record: Any = indexed.record
        session = record.command.session if record.command is not None else _NO_SESSION
        return CommittedTransaction(indexed.index, epoch, time_ms, time_ms, session)

    # --- ends of transactions -----------------------------------------------------------------------------------------

    def _prepare(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        branch = self._open.change(record.transaction, time_ms)
        if branch.is_prepared:
            branch.name_sets(record.resource_sets)
            return None
        branch.xid, branch.resource_sets = record.xid, record.resource_sets
        if record.commit_when_prepared:
            self._check_whole(indexed, branch)
            done = self._ended(indexed, epoch, time_ms, branch)
            # The coordinator of others had it prepared, and nothing was done in it.
            done.is_joint = bool(done.resource_sets)
            return done
        branch.is_prepared, branch.counted = True, record.durable_records
        return None

    def _commit(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        branch = self._open.find(record.transaction)
        self._check_whole(indexed, branch)
        if branch is None or not branch.is_prepared:
            return None
        done = self._ended(indexed, epoch, time_ms, branch)
        done.is_joint, done.is_heuristic = True, record.is_heuristic
        return done

    def _check_whole(self, indexed: IndexedRecord, found: OpenTransaction | None) -> None:
        """Raises `ContentGone` unless all is known of the transaction that this record ends; a collector needs not know it."""
        record: Any = indexed.record
        key = record.transaction
        if record.durable_records >= 0:
            is_whole = (
                found.has_all(record.durable_records) if found is not None else not record.durable_records
            )
        elif key[0] > self.known_after:
            is_whole = True
        else:
            # Of an older version: its first durable record may be recognised by its ordinal, and a commit has a prepare.
            is_whole = not isinstance(record, Commit) if found is None else found.begins_with_first
        if not is_whole and not self._is_collecting:
            raise ContentGone(key, indexed.index)

    def _ended(
        self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs, open_one: OpenTransaction
    ) -> CommittedTransaction:
        self._open.end(open_one.key)
        done = self._command(indexed, epoch, time_ms)
        done.key, done.started_ms = open_one.key, open_one.started_ms
        done.xid, done.resource_sets = open_one.xid, open_one.resource_sets
        self._operations = open_one.operations
        return done

    def _rollback(self, indexed: IndexedRecord, epoch: Epoch, time_ms: TimeMs) -> CommittedTransaction | None:
        record: Any = indexed.record
        open_one = self._open.find(record.transaction)
        if open_one is not None and open_one.is_prepared and record.reason not in _ENDS_PREPARED:
            return None
        self._check_whole(indexed, open_one)
        if open_one is None:
            return None  # It ended with its epoch, or nothing was done in it.
        done = self._command(indexed, epoch, time_ms)
        done.key, done.rollback_reason = record.transaction, record.reason
        self._open.end(open_one.key)
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
        if not record.is_handed_over:
            self._open.end_unprepared()


_TAKE: dict[type, Callable[..., CommittedTransaction | None]] = {
    Publish: EventBuilder._operation,
    Dequeue: EventBuilder._operation,
    Move: EventBuilder._alone,
    Prepare: EventBuilder._prepare,
    Commit: EventBuilder._commit,
    Rollback: EventBuilder._rollback,
    EpochBegins: EventBuilder._epoch_begins,
    DeclareQueue: EventBuilder._alone,
    DeleteQueue: EventBuilder._alone,
    DeclareExchange: EventBuilder._alone,
    DeleteExchange: EventBuilder._alone,
}
