"""What clients saw, in the order in which they saw it; the checkers read it, nobody in the simulated world does.

Law: an operation is invoked once and ends at most once: with an answer, or in doubt. What was delivered, browsed or said about an
outcome carries the epoch and the commit index of the message that brought it.
"""

from dataclasses import dataclass, field

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName, TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT


class PromiseBroken(Exception):
    """A promise of DESIGN 1 is broken. `promise` is P1 to P8; the sentence says how."""

    def __init__(self, promise: str, sentence: str) -> None:
        super().__init__(f"{promise}: {sentence}")
        self.promise = promise
        self.sentence = sentence


@dataclass(slots=True)
class Operation:
    """One command of a client, from its invocation on. `ended_us` None: it never ended."""

    client: str
    set_name: SetName
    kind: str
    """publish, settle, begin, commit, rollback, declare queue, delete queue, ..."""
    invoked_us: int
    bodies: tuple[bytes, ...] = ()
    """Of a publish."""
    queue: str = ""
    """Published to, settled at, declared or deleted."""
    positions: tuple[QueuePosition, ...] = ()
    """Of a settle."""
    disposition: int = 0
    """Of a settle."""
    excluded_consumer: int = 0
    """Of a settle."""
    stream: int = 0
    """Of a settle: the one that its session had when it was invoked."""
    transaction: TransactionKey | None = None
    begun: tuple[TransactionKey, ...] = ()
    """By a commit."""
    is_durable: bool = True
    ended_us: int | None = None
    code: ErrorCode | None = None
    """None: not ended, or in doubt."""
    is_in_doubt: bool = False
    value: int = 0
    epoch: Epoch = field(default=Epoch(0))
    commit_index: LogIndex = field(default=LogIndex(0))

    @property
    def is_ok(self) -> bool:
        return self.code is ErrorCode.NONE

    @property
    def is_rejected(self) -> bool:
        return self.code is not None and self.code is not ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that a client saw."""

    position: QueuePosition
    body: bytes
    delivery_count: int
    is_durable: bool
    priority: int = PRIORITY_DEFAULT


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages handed to a client, which now holds them. `selector` "": its consumer wants all."""

    time_us: int
    client: str
    set_name: SetName
    queue: str
    epoch: Epoch
    commit_index: LogIndex
    messages: tuple[Seen, ...]
    selector: str = ""


@dataclass(frozen=True, slots=True)
class Browsed:
    """One answer to a browse: what was behind `after`, up to `limit` messages; or one batch that a browsing consumer was shown,
    behind what it was shown before, of what its selector matches ("": all)."""

    time_us: int
    client: str
    set_name: SetName
    queue: str
    epoch: Epoch
    commit_index: LogIndex
    asked_us: int
    after: QueuePosition
    limit: int
    messages: tuple[Seen, ...]
    is_end: bool
    selector: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeHeard:
    """One answer about a transaction. `state` is a value of `OutcomeState`."""

    time_us: int
    client: str
    set_name: SetName
    epoch: Epoch
    commit_index: LogIndex
    transaction: TransactionKey
    state: int
    was_fenced: bool


@dataclass(slots=True)
class History:
    """Everything of one run."""

    operations: list[Operation] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    browses: list[Browsed] = field(default_factory=list)
    outcomes: list[OutcomeHeard] = field(default_factory=list)
