"""The writer: the one way in which the primary changes state.

Law: a record gets its index and is applied to the state at once, so that the next command is checked against everything
appended before it (DESIGN 6: "against what it has appended, not only applied"). What others may see of it waits at the gate.
"""

from collections.abc import Sequence

from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.records import AnyRecord, Begin, Commit, Dequeue, Prepare, Publish, Rollback
from lockstep.core.set_state import SetState
from services.primary.core.observers import TransactionObserver, TransactionObserverFactory
from services.primary.core.replication_log import ReplicationLog


def content_bytes_of(record: Publish) -> int:
    """Bytes of properties and bodies."""
    return sum([len(message.body) + len(message.properties) for message in record.messages])


class Writer:
    """Lives as long as the epoch; used by the primary core and its command handlers."""

    def __init__(
        self, log: ReplicationLog, state: SetState, factories: Sequence[TransactionObserverFactory]
    ) -> None:
        self.log = log
        self.state = state
        self._factories = factories
        self._observers: dict[TransactionKey, list[TransactionObserver]] = {}

    def append(self, record: AnyRecord, is_durable: bool) -> LogIndex:
        """Append and apply one record; answers its index."""
        content_bytes = content_bytes_of(record) if type(record) is Publish else 0
        index = self.log.append(record, is_durable, content_bytes)
        self.state.apply(index, self.log.epoch, record, is_durable)
        match record:
            case Begin():
                key = (index, self.log.epoch)
                self._observers[key] = [factory.create(key) for factory in self._factories]
            case Publish(transaction=key) if key is not None:
                for observer in self._observers.get(key, ()):
                    observer.publish(index, record)
            case Dequeue(transaction=key) if key is not None:
                for observer in self._observers.get(key, ()):
                    observer.accept(index, record)
            case Prepare(transaction=key):
                for observer in self._observers.get(key, ()):
                    observer.prepare(index)
                if record.commit_when_prepared:
                    self._ended(key, index, is_committed=True)
            case Commit(transaction=key):
                self._ended(key, index, is_committed=True)
            case Rollback(transaction=key):
                if self.state.transactions.get(key) is None:
                    self._ended(key, index, is_committed=False)
            case _:
                pass
        return index

    def _ended(self, key: TransactionKey, index: LogIndex, is_committed: bool) -> None:
        for observer in self._observers.pop(key, ()):
            if is_committed:
                observer.commit(index)
            else:
                observer.rollback(index)
