"""The tx-queue of a transaction (DESIGN 3, 8): its records in the log, from `begin` to its outcome, and who is in it.

Law: a closed tx-queue rejects any attempt to subscribe: a backup that joins later gets the transaction with its snapshot or
the log, and its vote is not asked for. A tx-queue is released once the outcome is durable on every in-sync member (T9).

    open --close (prepare, or its end)--> closed --outcome at the commit index--> released
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum

from lockstep.core.ids import BrokerId, LogIndex, TransactionKey


class TxQueueClosed(Exception):
    """Somebody subscribed to a tx-queue after its close."""

    def __init__(self, key: TransactionKey) -> None:
        super().__init__(f"the tx-queue of transaction {key} is closed")
        self.key = key


class Vote(Enum):
    """What a backup has said of a transaction."""

    NONE = "none"
    OK = "ok"
    """It acknowledged the `prepare`."""
    REFUSED = "refused"


@dataclass(slots=True)
class TxReplicatingSubscription:
    """The transaction's view of one backup's subscription. Lives as long as the tx-queue."""

    broker: BrokerId
    vote: Vote = Vote.NONE


@dataclass(slots=True)
class TxQueue:
    """One transaction's tx-queue, from its first record to its release."""

    key: TransactionKey
    indexes: list[LogIndex] = field(default_factory=list)
    """Of its records."""
    bytes: int = 0
    """Of the content that it carries."""
    is_closed: bool = False
    subscriptions: dict[BrokerId, TxReplicatingSubscription] = field(default_factory=dict)

    def subscribe(self, broker: BrokerId) -> TxReplicatingSubscription:
        """Take a backup into the transaction; raises `TxQueueClosed` after the close."""
        if self.is_closed:
            raise TxQueueClosed(self.key)
        return self.subscriptions.setdefault(broker, TxReplicatingSubscription(broker))

    def push(self, index: LogIndex, size: int) -> None:
        """One more record, with `size` bytes of content; raises `TxQueueClosed` after the close."""
        if self.is_closed:
            raise TxQueueClosed(self.key)
        self.indexes.append(index)
        self.bytes += size

    def close(self) -> None:
        self.is_closed = True


_Asked = tuple[LogIndex, TxReplicatingSubscription]
"""Index of a `prepare`, and whose vote on it is asked for."""


class TxQueues:
    """All tx-queues that are not released yet. Lives as long as the epoch; driven by the primary core."""

    def __init__(self) -> None:
        self.by_key: dict[TransactionKey, TxQueue] = {}
        self._voting: dict[BrokerId, deque[_Asked]] = defaultdict(deque)
        """What each backup has not voted on, in log order: an acknowledgement looks at nothing else, however many transactions
        stay prepared."""
        self._ended: dict[TransactionKey, LogIndex] = {}
        """Closed with an outcome that is not yet at the commit index, in log order."""

    @property
    def bytes(self) -> int:
        return sum(queue.bytes for queue in self.by_key.values())

    def open(self, key: TransactionKey, brokers: list[BrokerId]) -> TxQueue:
        """A transaction began; the backups that are subscribed to the log are in it."""
        queue = self.by_key[key] = TxQueue(key)
        for broker in brokers:
            queue.subscribe(broker)
        return queue

    def prepared(self, key: TransactionKey, index: LogIndex) -> None:
        """The `prepare` was appended at `index`: it is closed, and its subscribers vote."""
        queue = self.by_key[key]
        queue.push(index, 0)
        queue.close()
        for broker, subscription in queue.subscriptions.items():
            self._voting[broker].append((index, subscription))

    def ended(self, key: TransactionKey, index: LogIndex) -> None:
        """The outcome's record was appended at `index`."""
        queue = self.by_key.get(key)
        if queue is not None:
            queue.close()
            self._ended[key] = index

    def joined(self, broker: BrokerId) -> None:
        """A backup subscribed to the log: it is in every transaction whose tx-queue is still open."""
        for queue in self.by_key.values():
            if not queue.is_closed:
                queue.subscribe(broker)

    def left(self, broker: BrokerId) -> None:
        """A backup's subscription ended: nobody waits for its vote (it never counts as a yes)."""
        self._voting.pop(broker, None)
        for queue in self.by_key.values():
            queue.subscriptions.pop(broker, None)

    def acknowledged(self, broker: BrokerId, log_end: LogIndex) -> None:
        """A backup has everything up to `log_end` durable: that is its ok to each `prepare` that it covers."""
        waiting = self._voting[broker]
        while waiting and waiting[0][0] <= log_end:
            waiting.popleft()[1].vote = Vote.OK

    def release(self, commit_index: LogIndex) -> None:
        """Drop what has ended and is durable on every in-sync member."""
        for key, index in list(self._ended.items()):
            if index > commit_index:
                break
            del self._ended[key], self.by_key[key]
