"""TxBuffer and DtxBuffer: what a transaction will do, collected from its records until one record ends it.

Law: a buffer changes nothing outside itself and what it reserves. Its publishes have contents but no positions, its dequeues
hold locks; a commit gives all publishes their positions in the order of their ordinals, whatever order they were collected
in. Each operation has the durability of its record, and the buffer is durable once a durable record named it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from lockstep.core.ids import (
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SessionKey,
    TransactionKey,
    message_ids_from,
    positions_from,
)
from lockstep.core.transaction_states import TransactionState, Transition, after
from lockstep.core.xa import BranchState


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one queue gets of a batch of messages."""

    queue: QueueId
    places: list[int] | None
    """Which of the batch, ascending; None: all, as in each other share of the batch."""
    length: int
    size: int
    """Bytes."""
    levels: Sequence[int] | None = None
    """The priority of each; None: all have the default one."""


class PublishOperation(msgspec.Struct, frozen=True, gc=False):
    """The messages of one `Publish` record: `place(index, ordinal)` and the `count - 1` ids behind it."""

    index: LogIndex
    ordinal: int
    count: int
    is_durable: bool

    @property
    def message_ids(self) -> Sequence[MessageId]:
        return message_ids_from(self.index, self.ordinal, self.count)

    def positions_at(self, commit_index: LogIndex) -> Sequence[QueuePosition]:
        """Where its messages stand in their queues if the record at `commit_index` commits them."""
        return positions_from(commit_index, self.ordinal, self.count)


class DequeueOperation(msgspec.Struct, frozen=True, gc=False):
    """One `Dequeue` record: all its positions, some of which may be gone or, in a durable state alone, never have been."""

    index: LogIndex
    ordinal: int
    queue: QueueId
    positions: tuple[QueuePosition, ...]
    reason: int
    is_durable: bool


Operation = PublishOperation | DequeueOperation


def cost_of(operation: Operation) -> int:
    """Of letting it go (`taking_apart`): there may be very many positions in one."""
    return 1 + len(operation.positions) if isinstance(operation, DequeueOperation) else 1


_NO_SESSION = SessionKey(0)


@dataclass(slots=True)
class TxBuffer:
    """One open or prepared transaction, from `begin` (or the first record that names it) to the record that ends it."""

    key: TransactionKey
    state: TransactionState = TransactionState.OPEN
    xid: bytes = b""
    """The branch's name; empty for a TX, and as long as only the lost `begin` of a DTX would have told."""
    session: SessionKey = _NO_SESSION
    timeout_ms: int = 0
    """Runs until prepare (DESIGN T2); 0: none."""
    started_ms: int = 0
    is_rollback_only: bool = False
    """While open: it can only be rolled back now. Transient: no open transaction survives a restart."""
    is_durable: bool = False
    """Whether a durable record named it."""
    operations: list[Operation] = field(default_factory=list)
    """In the order of the log."""
    touched: set[QueueId] = field(default_factory=set)
    """Queues that its operations name."""
    shares: dict[LogIndex, Sequence[Share]] = field(default_factory=dict, compare=False)
    """How its publishes are spread over queues, by index, as far as that was found already."""
    next_ordinal: int = 0
    """The lowest ordinal behind all of its operations."""

    def add(self, operation: Operation) -> None:
        """Collect an operation."""
        self.operations.append(operation)
        self.is_durable = self.is_durable or operation.is_durable
        used = operation.count if isinstance(operation, PublishOperation) else 1
        self.next_ordinal = max(self.next_ordinal, operation.ordinal + used)

    def drop_transients(self) -> list[Operation]:
        """A restart: forget everything that is not durable; answers the operations that are lost."""
        lost = [operation for operation in self.operations if not operation.is_durable]
        if lost:
            kept = [operation for operation in self.operations if operation.is_durable]
            self.operations, self.next_ordinal = [], 0
            for operation in kept:
                self.add(operation)
        self.session = _NO_SESSION
        self.timeout_ms = self.started_ms = 0
        return lost

    def advance(self, transition: Transition) -> None:
        """Change the state by the table; raises `IllegalTransition` and changes nothing."""
        self.state = after(self.state, transition)

    @property
    def is_prepared(self) -> bool:
        return self.state is TransactionState.PREPARED

    @property
    def durable_records(self) -> int:
        """Of it in the log: its durable operations, and its `prepare`."""
        return [operation.is_durable for operation in self.operations].count(True) + self.is_prepared

    @property
    def publishes(self) -> list[PublishOperation]:
        """In the order of their ordinals, that is of the messages' positions."""
        found = [operation for operation in self.operations if isinstance(operation, PublishOperation)]
        found.sort(key=attrgetter("ordinal"))  # Those of one ordinal stay in the order of the log.
        return found


@dataclass(slots=True)
class DtxBuffer(TxBuffer):
    """A branch of a distributed transaction: it has an xid, and may stay prepared through failovers and restarts."""

    associations: dict[SessionKey, bool] = field(default_factory=dict)
    """Sessions that work in it while it is open: whether they have suspended that."""
    prepared_ms: int = 0

    @property
    def branch_state(self) -> BranchState:
        """What a verb finds."""
        if self.is_prepared:
            return BranchState.PREPARED
        if self.is_rollback_only:
            return BranchState.ROLLBACK_ONLY
        if not self.associations:
            return BranchState.ENDED
        return BranchState.SUSPENDED if all(self.associations.values()) else BranchState.ACTIVE

    @classmethod
    def of(cls, buffer: TxBuffer, xid: bytes) -> "DtxBuffer":
        """The same transaction, now known to be the branch `xid`: its `begin` was lost, its `prepare` tells."""
        return cls(
            buffer.key,
            buffer.state,
            xid,
            buffer.session,
            buffer.timeout_ms,
            buffer.started_ms,
            buffer.is_rollback_only,
            buffer.is_durable,
            buffer.operations,
            buffer.touched,
            buffer.shares,
            buffer.next_ordinal,
        )
