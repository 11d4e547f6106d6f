"""TransactionObserver and TransactionObserverFactory (DESIGN 8): the note's hooks into a broker's transactions.

Law: one observer per transaction, told of each event once, after its record has its index and before anyone hears of it. The
primary registers the factory that puts the events on the tx-queue; others (metrics, tests) may be registered beside it. A factory
says whether it wants to hear of transactions that are appended whole.
"""

from collections.abc import Callable
from typing import Protocol

from lockstep.core.content import size_of_all
from lockstep.core.ids import BrokerId, LogIndex, TransactionKey
from lockstep.core.records import Dequeue, Publish
from services.primary.core.tx_queue import TxQueue, TxQueues


class TransactionObserver(Protocol):
    """Observes one transaction from `begin`, or the first record behind it, to its outcome."""

    def publish(self, index: LogIndex, record: Publish) -> None:
        """Messages were published in it."""

    def accept(self, index: LogIndex, record: Dequeue) -> None:
        """Messages were accepted in it; the record names queue and positions."""

    def prepare(self, index: LogIndex) -> None:
        """It was prepared: nothing can be added any more."""

    def commit(self, index: LogIndex) -> None:
        """The record at `index` commits it; for a TX that is the record of its prepare."""

    def rollback(self, index: LogIndex) -> None:
        """The record at `index` rolls it back."""


class TransactionObserverFactory(Protocol):
    """Makes the observers of new transactions."""

    hears_whole: bool
    """Also of those whose operations and commit are appended together: they are never open."""

    def create(self, key: TransactionKey) -> TransactionObserver:
        """The observer of the transaction that just began."""


class TxQueueObserver:
    """Puts a transaction's events on its tx-queue."""

    def __init__(self, queues: TxQueues, queue: TxQueue) -> None:
        self._queues = queues
        self._queue = queue

    def publish(self, index: LogIndex, record: Publish) -> None:
        self._queue.push(index, size_of_all(record.messages))

    def accept(self, index: LogIndex, record: Dequeue) -> None:
        self._queue.push(index, 0)

    def prepare(self, index: LogIndex) -> None:
        self._queues.prepared(self._queue.key, index)

    def commit(self, index: LogIndex) -> None:
        self._queues.ended(self._queue.key, index)

    def rollback(self, index: LogIndex) -> None:
        self._queues.ended(self._queue.key, index)


class TxQueueObserverFactory:
    """The primary's own factory: opens a tx-queue for every transaction that is open for a while.

    One that is appended whole would have its tx-queue closed before anybody could subscribe to it, or refuse it.
    """

    hears_whole = False

    def __init__(self, queues: TxQueues, subscribed: Callable[[], list[BrokerId]]) -> None:
        self._queues = queues
        self._subscribed = subscribed
        """The backups that are subscribed to the log now."""

    def create(self, key: TransactionKey) -> TxQueueObserver:
        return TxQueueObserver(self._queues, self._queues.open(key, self._subscribed()))
