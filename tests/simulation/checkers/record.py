"""What a run leaves for the checkers: the clients' history, the meaning of the committed logs, and what replicas held."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.core.frames import Frame
from lockstep.core.ids import BrokerId, Epoch, LogIndex, QueueId, QueuePosition, SetName, TransactionKey
from tests.simulation.distributed import DistributedTransaction
from tests.simulation.history import History
from tests.simulation.log_model import Copy, LogModel


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica's state at one moment, when its log up to `applied` was committed."""

    time_us: int
    broker: BrokerId
    set_name: SetName
    applied: LogIndex
    epoch: Epoch
    state_hash: str
    queues: Mapping[QueueId, tuple[QueuePosition, ...]]
    outcomes: Mapping[TransactionKey, str]
    """Transactions that it knows as ended: "committed" or "rolled back"."""
    prepared: tuple[TransactionKey, ...] = ()
    is_primary: bool = False
    open_transactions: int = 0
    tx_queue_bytes: int = 0
    tx_queues: int = 0


@dataclass(slots=True)
class JournalReading:
    """What a reader got of a store at the end of a run, piece by piece from the lowest index that was there."""

    broker: BrokerId
    set_name: SetName
    commit_index: LogIndex
    """The store's, when the reading began."""
    floor: LogIndex
    """The disk need not have what is at or below it: a snapshot was installed there, or a limit or damage took it away."""
    frames: list[bytes] = field(default_factory=list)
    refusal: str = ""


@dataclass(slots=True)
class Record:
    """Everything that the checkers get."""

    history: History = field(default_factory=History)
    models: dict[SetName, LogModel] = field(default_factory=dict)
    logs: dict[SetName, list[Frame]] = field(default_factory=dict)
    """The committed frames, from the first on."""
    readings: list[JournalReading] = field(default_factory=list)
    views: list[ReplicaView] = field(default_factory=list)
    """Samples taken during the run."""
    final_views: list[ReplicaView] = field(default_factory=list)
    """One for each replica, at rest after the liveness phase."""
    unresolved: list[tuple[SetName, TransactionKey]] = field(default_factory=list)
    """Commits in doubt whose client never heard their outcome."""
    refused: list[tuple[SetName, TransactionKey]] = field(default_factory=list)
    """Transactions that a backup refused while they were open."""
    handed_on: dict[tuple[SetName, Epoch], LogIndex] = field(default_factory=dict)
    """Epochs that were handed over with what was open -> where the log ended then."""
    departed: frozenset[str] = frozenset()
    """Clients that left without a word: what they asked for may never end for them."""
    distributed: list[DistributedTransaction] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)
    """What coordinators have reported of branches that did not end as decided."""
    stuck: list[str] = field(default_factory=list)
    """What did not come to rest in the liveness phase."""

    def copies(self, set_name: SetName, queue: str) -> dict[QueuePosition, Copy]:
        """All that ever was in queues of that name, by position (positions are never given twice)."""
        found: dict[QueuePosition, Copy] = {}
        for life in self.models[set_name].queues_named(queue):
            found.update(life.copies)
        return found


def seconds(time_us: int) -> str:
    """A time for sentences."""
    return f"{time_us / 1e6:.6f} s"
