"""What a broker and its store say to each other (DESIGN 5, R2); `store.proto` carries the same words.

Law: every request names its set, the sender's epoch and incarnation. The store makes the highest epoch durable and refuses
lower ones before touching anything. The last `OpenSet` makes its sender the only writer of the set: whatever an earlier stream
still sends is refused, so that a frame of a dead process left in a socket is never appended after the new one read the log's end
(history 23). Answers come in the order of the requests; `Appended` and `Truncated` leave only after the sync that they report.
"""

from typing import NamedTuple

import msgspec

from lockstep.core.epoch_table import EpochStarts, LogOutline, Reigns
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import DiskId, Epoch, Incarnation, LogIndex, SetName

FREE_BYTES_UNKNOWN = 1 << 62


class StateItem(NamedTuple):
    """One item of a state snapshot on its way: key, value, and whether it is durable state. A tuple, because there are
    millions.
    """

    key: bytes
    value: bytes
    is_durable: bool = True


class StoreRequest(msgspec.Struct, frozen=True):
    """Base of all requests."""

    set_name: SetName
    epoch: Epoch
    incarnation: Incarnation


class OpenSet(StoreRequest, frozen=True):
    """Become the only writer. Creates the set's directory when it is not there. Also the fence: the epoch is durable before
    the answer.
    """


class AppendFrames(StoreRequest, frozen=True):
    """Append serialised durable parts, in order. `commit_index` is the highest the sender knows (frees the consolidator).

    Without frames it only tells the commit index and is not answered. A frame at or below the log's end with the same epoch
    there is answered, not appended; one of another epoch is refused (the broker truncates first); one that leaves a gap is
    refused.
    """

    frames: tuple[bytes, ...]
    commit_index: LogIndex


class Truncate(StoreRequest, frozen=True):
    """Cut everything behind `after`, a frame's last index; refused below the highest commit index that the store knows (R10)."""

    after: LogIndex


class LoadState(StoreRequest, frozen=True):
    """Send the snapshot's items, then the frames behind it, in chunks; ends with `StateLoaded`."""

    takes_blocks: bool = False
    """Items may come in blocks, as they are kept (`item_blocks`)."""


class BeginInstall(StoreRequest, frozen=True):
    """A snapshot at `index` replaces everything. Marked on disk before old state is touched: a crash leaves an empty set."""

    index: LogIndex
    epochs: EpochStarts
    """The epoch table up to `index`: (epoch, first index)."""
    time_ms: int
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""


class InstallItems(StoreRequest, frozen=True):
    """Durable items of the snapshot, any number of times between begin and end."""

    items: tuple[StateItem, ...]


class EndInstall(StoreRequest, frozen=True):
    """The snapshot is whole: after `Installed` the set's log ends at its index."""


class RememberMap(StoreRequest, frozen=True):
    """Keep the cluster map's bytes, the entry's and etcd's own revision, and the cluster generation (R1); the highest revisions
    of a generation win, and a new generation over an old one. Not answered.
    """

    map_bytes: bytes
    revision: int
    """Of the entry."""
    generation: str
    etcd_revision: int = 0
    """The highest that was seen of etcd; 0: not known."""
    stamp: str = ""
    """The newest that was seen in etcd (`Stamp.encode`); "": none."""


class SetAside(StoreRequest, frozen=True):
    """Rename the set's directory away and format a new one with a new disk id (R10). Answered with `SetOpened`; refused where the
    disk finds nothing wrong with itself, unless it is named.
    """

    disk: DiskId = DiskId("")


class AcceptDamage(StoreRequest, frozen=True):
    """An operator accepts what the damage took (R7): the log ends, for ever, where its undamaged part does, and nothing behind it
    counts as committed any more. Only by an explicit command. Answered with `SetOpened`; refused where no part is undamaged.

    What the disk takes for whole ends only for whoever names the disk, and where: he has read it, and it is of no use to him.
    """

    disk: DiskId = DiskId("")
    unusable_from: LogIndex = LogIndex(0)
    """The first index of what is of no use; 0: the disk itself has found what is damaged."""
    reason: str = ""
    """Why it is of none, for the log."""


class StoreAnswer(msgspec.Struct, frozen=True):
    """Base of all answers; epoch and incarnation repeat the request's."""

    set_name: SetName
    epoch: Epoch
    incarnation: Incarnation


class SetOpened(StoreAnswer, frozen=True):
    """What the disk holds."""

    disk: DiskId
    log_end: LogIndex
    """Highest index that is durable here; 0 for an empty set."""
    epochs: EpochStarts
    """(epoch, first index) ascending; empty for an empty set. The last one's epoch is that of `log_end`."""
    snapshot_index: LogIndex
    commit_index: LogIndex
    """Highest commit index that this disk knows: from frames, from AppendFrames as remembered, from a snapshot that it has
    made itself. One that it was sent may reach beyond it."""
    highest_epoch: Epoch
    map_bytes: bytes
    map_revision: int
    generation: str
    damage: str
    """"" or what is wrong, in words (a hole at an index, a missing tail): then `log_end` is that of the undamaged part (R10)."""
    etcd_revision: int = 0
    """The highest of etcd that this disk was told, in `generation`; 0: none."""
    stamp: str = ""
    """The newest of etcd that this disk was told; "": none."""
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""
    is_unusable: bool = False
    """What is damaged is whole, by its checksums, and no good all the same: perhaps to this version only."""
    has_no_state: bool = False
    """The damage left no state that the set could go on from, and `AcceptDamage` is refused."""

    @property
    def outline(self) -> LogOutline:
        return LogOutline(self.epochs, self.log_end, self.reigns)


class Appended(StoreAnswer, frozen=True):
    """Everything up to `log_end` is durable. Cumulative: one answer may cover many requests. Behind each piece of a
    big group the last one is said again: the disk works.
    """

    log_end: LogIndex
    free_bytes: int = FREE_BYTES_UNKNOWN
    """Room left on the disk when it was written: below a reserve, backups refuse open transactions and publishes are rejected."""


class Truncated(StoreAnswer, frozen=True):
    log_end: LogIndex


class StateChunk(StoreAnswer, frozen=True):
    """A part of the answer to `LoadState`: items first, then frames (durable parts)."""

    items: tuple[StateItem, ...]
    frames: tuple[bytes, ...]


class StateLoaded(StoreAnswer, frozen=True):
    """End of the answer to `LoadState`."""

    snapshot_index: LogIndex
    log_end: LogIndex


class ItemsInstalled(StoreAnswer, frozen=True):
    """The items of one `InstallItems` are written, not yet durable: the next may come.

    A store that had a whole snapshot before it at once would be silent for as long as that takes.
    """


class Installed(StoreAnswer, frozen=True):
    log_end: LogIndex


class StoreRefused(StoreAnswer, frozen=True):
    """Nothing was done. WRONG_EPOCH: `highest_epoch` was seen, or another incarnation has opened the set since; STORE_FULL,
    UNAVAILABLE (an I/O error; the set is closed until it is opened again), ILLEGAL_STATE (gap, truncation below the commit
    index, a repeated index of another epoch)."""

    code: ErrorCode
    message: str
    highest_epoch: Epoch


AnyStoreRequest = (
    OpenSet
    | AppendFrames
    | Truncate
    | LoadState
    | BeginInstall
    | InstallItems
    | EndInstall
    | RememberMap
    | SetAside
    | AcceptDamage
)
AnyStoreAnswer = (
    SetOpened | Appended | Truncated | StateChunk | StateLoaded | ItemsInstalled | Installed | StoreRefused
)
