"""The writer: the one way in which the primary changes state.

Law: a record gets its index and is applied to the state at once, so that the next command is checked against everything
appended before it (DESIGN 6: "against what it has appended, not only applied"). What others may see of it waits at the gate.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.core.apply_whole import AppliedAt
from lockstep.core.content import size_of_all
from lockstep.core.frames import LoggedRecord, encode_record
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.records import (
    Annotate,
    AnyRecord,
    Begin,
    Bind,
    Commit,
    Dequeue,
    ForgetOutcomes,
    Move,
    Prepare,
    Publish,
    Requeue,
    Rollback,
    Unbind,
)
from lockstep.core.set_state import SetState
from services.primary.core.observers import TransactionObserver, TransactionObserverFactory
from services.primary.core.replication_log import ReplicationLog

NAME_BYTES = 9
"""What a record takes to name one position, one queue of one message, or one time, at most."""
MESSAGE_BYTES = 24
"""What it takes for a message, beside its content and its queues."""
_TEXT_BYTES = 5
"""What it takes for a text, beside its bytes, at most."""
NAMES_MANY = 1000
"""So many names of queues are serialised with their record: a frame may have thousands of times as many."""
WholeOperation = tuple[Publish | Dequeue, bool, int]
"""A record, whether it is durable, and bytes of what its messages have."""


class Writer:
    """Lives as long as the epoch; used by the primary core and its command handlers."""

    def __init__(
        self, log: ReplicationLog, state: SetState, factories: Sequence[TransactionObserverFactory]
    ) -> None:
        self.log = log
        self.state = state
        self._factories = factories
        self._hearing_whole = [factory for factory in factories if factory.hears_whole]
        self._observers: dict[TransactionKey, list[TransactionObserver]] = {}
        self._observers_of_prepared: dict[TransactionKey, list[TransactionObserver]] = {}
        """They hear of nothing more but the end."""

    def append(self, record: AnyRecord, is_durable: bool, places: int = 0) -> LogIndex:
        """Append and apply one record; answers its index. `places`: what its messages get in all queues, if that is more than one
        each.
        """
        logged: LoggedRecord = record
        if type(record) is Publish:
            content_bytes = size_of_all(record.messages) or MESSAGE_BYTES * len(record.messages)
            if places > len(record.messages):
                names_bytes = NAME_BYTES * places
                if places >= NAMES_MANY and names_bytes > content_bytes:
                    logged = encode_record(record)
                content_bytes += names_bytes
        elif (measure := _MEASURES.get(type(record))) is not None:
            content_bytes = measure(record)
        else:
            content_bytes = 0
        index = self.log.append(logged, is_durable, content_bytes)
        self.state.apply(index, self.log.epoch, record, is_durable)
        if (told := _TOLD.get(type(record))) is not None:
            told(self, index, record)
        return index

    def append_whole(self, operations: Sequence[WholeOperation], prepare: Prepare) -> LogIndex:
        """Append the operations of a TX that has done nothing else, and its commit; apply them as a whole. Answers its index.

        The commit leaves out the indexes of the TX that it begins.
        """
        log, key = self.log, prepare.transaction
        if key not in self._observers and self._hearing_whole:
            self._observers[key] = [factory.create(key) for factory in self._hearing_whole]
        records: list[AppliedAt] = [
            (log.append(record, is_durable, content_bytes), record, is_durable)
            for record, is_durable, content_bytes in operations
        ]
        log.skip(prepare.begun)
        committed = log.append(prepare, True, 0)
        records.append((committed, prepare, True))
        is_applied = self.state.apply_whole(log.epoch, records)
        assert is_applied, f"transaction {key} is open, and has done nothing"
        if self._observers:
            for index, record, _ in records:
                _TOLD[type(record)](self, index, record)
        return committed

    def observe(self, key: TransactionKey) -> None:
        """A transaction is open, whose `begin` an earlier epoch has: have it observed from here on."""
        self._observers[key] = [factory.create(key) for factory in self._factories]

    def _begun(self, index: LogIndex, record: Begin) -> None:
        self.observe((index, self.log.epoch))

    def _published(self, index: LogIndex, record: Publish) -> None:
        if record.transaction is not None:
            for observer in self._observers.get(record.transaction, ()):
                observer.publish(index, record)

    def _dequeued(self, index: LogIndex, record: Dequeue) -> None:
        if record.transaction is not None:
            for observer in self._observers.get(record.transaction, ()):
                observer.accept(index, record)

    def _prepared(self, index: LogIndex, record: Prepare) -> None:
        key = record.transaction
        for observer in self._observers.get(key, ()):
            observer.prepare(index)
        if record.commit_when_prepared:
            self._ended(key, index, is_committed=True)
        elif key in self._observers:
            # It may be said again, for the resource sets that it names.
            self._observers_of_prepared[key] = self._observers.pop(key)

    def _committed(self, index: LogIndex, record: Commit) -> None:
        self._ended(record.transaction, index, is_committed=True)

    def _rolled_back(self, index: LogIndex, record: Rollback) -> None:
        if self.state.transactions.get(record.transaction) is None:
            self._ended(record.transaction, index, is_committed=False)

    def _ended(self, key: TransactionKey, index: LogIndex, is_committed: bool) -> None:
        observers = self._observers.pop(key, None) or self._observers_of_prepared.pop(key, None)
        for observer in observers or ():
            if is_committed:
                observer.commit(index)
            else:
                observer.rollback(index)


# A table, as for applying: most records are none of these.
def _bytes_of_texts(pairs: Sequence[tuple[str, str]]) -> int:
    return sum([len(name.encode()) + len(value.encode()) + 2 * _TEXT_BYTES for name, value in pairs])


_MEASURES: dict[type, Callable[[Any], int]] = {
    Annotate: lambda record: NAME_BYTES * len(record.positions) + len(record.annotations),
    Bind: lambda record: _bytes_of_texts(record.arguments),
    Dequeue: lambda record: NAME_BYTES * len(record.positions),
    ForgetOutcomes: lambda record: 2 * NAME_BYTES * len(record.kept),
    Move: lambda record: NAME_BYTES * (len(record.positions) + len(record.targets) + len(record.expires_ms)),
    Requeue: lambda record: NAME_BYTES * len(record.positions),
    Unbind: lambda record: _bytes_of_texts(record.arguments),
}
"""What else may be long, about: by kinds of records, of which the others have some names at most."""
_TOLD: dict[type, Callable[[Writer, LogIndex, Any], None]] = {
    Begin: Writer._begun,
    Publish: Writer._published,
    Dequeue: Writer._dequeued,
    Prepare: Writer._prepared,
    Commit: Writer._committed,
    Rollback: Writer._rolled_back,
}
