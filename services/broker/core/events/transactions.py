"""What a resource set has committed, transaction by transaction, as readers of events get it (DESIGN 7).

Law: one event per durable effect, in the order of the log, and a transaction's events are all at the one index at which it took
effect. What is here is a function of the log's durable records alone, so that every broker makes the same of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from lockstep.core.ids import Epoch, LogIndex, SessionKey, TimeMs, TransactionKey
from lockstep.core.records import Message


class EventKind(IntEnum):
    """On the wire: added, never reused."""

    ENQUEUE = 1
    DEQUEUE = 2
    """Accepted, rejected, purged."""
    EXPIRE = 3
    """Expired or evicted, and gone."""
    DEAD_LETTER = 4
    """Left a queue for its dead-letter targets."""
    DECLARE = 5
    DELETE = 6
    ROLLBACK = 7


@dataclass(slots=True)
class Effects:
    """Events of one kind on one queue or exchange, one for each position (one, without a position, where there is no message)."""

    kind: EventKind
    resource: int
    """Id of the queue or exchange; 0: of neither."""
    name: str
    positions: Sequence[int] = (0,)
    """`QueuePosition`s."""
    messages: Sequence[Message] = ()
    """What was published, one for each position; empty: no content is here."""
    reason: int = 0
    """A `DequeueReason`; 0: none."""
    sources: Sequence[int] = ()
    """Of what was dead-lettered into this queue: the positions in the queue that it left."""
    expires_ms: int = 0
    """Of what was dead-lettered into this queue; 0: never."""
    is_exchange: bool = False


@dataclass(slots=True)
class CommittedTransaction:
    """A transaction, or a command outside of any, that took effect; or a transaction's rollback."""

    index: LogIndex
    """Of the record by which it took effect."""
    epoch: Epoch
    time_ms: TimeMs
    started_ms: TimeMs
    """Of the frame with its first record that is durable."""
    session: SessionKey
    key: TransactionKey | None = None
    xid: bytes = b""
    resource_sets: tuple[str, ...] = ()
    is_joint: bool = False
    """It was prepared before, or ended with its vote: other sets may have branches of it."""
    is_heuristic: bool = False
    rollback_reason: int = 0
    undone_publishes: int = 0
    undone_accepts: int = 0
    effects: list[Effects] = field(default_factory=list)

    @property
    def events(self) -> int:
        return sum(len(effects.positions) for effects in self.effects)
