"""What a primary and its backups say to each other (DESIGN 3, R8); `primary.proto` carries the same words.

Law: every message names the resource set and the sender's epoch; whoever sees a lower epoch than its own drops the message before
touching anything (R2). The backup opens the stream with `Subscribe`; what comes back is the log, in order, from where the
two logs agree, and for a newcomer a snapshot. That lies at the log's end: what it holds cannot be cut, so the newcomer is
in sync only when every disk of its set holds as much (R8).
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from lockstep.core.epoch_table import EpochStarts, LogOutline, Reigns
from lockstep.core.ids import (
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    QueueId,
    QueuePosition,
    SessionKey,
    SetName,
    TransactionKey,
)
from lockstep.core.store_protocol import StateItem


class ReplicationMessage(msgspec.Struct, frozen=True):
    """Base of all messages between a primary and a backup."""

    set_name: SetName
    epoch: Epoch


class Subscribe(ReplicationMessage, frozen=True):
    """A backup, its store fenced at `epoch`, asks for the log. Answered by `SubscriptionAccepted` or `SubscriptionRefused`."""

    broker: BrokerId
    disk: DiskId
    incarnation: Incarnation
    log_end: LogIndex
    """Durable here."""
    epochs: EpochStarts
    """(epoch, first index) of its log, for finding where the logs agree."""
    commit_index: LogIndex
    """The highest that this replica knows, or has in a snapshot, which it cannot cut either: of a disk that the map names that is
    committed, too. Above the new primary's log end it makes the primary give up (R5, R10)."""
    is_memory_whole: bool
    """Its memory holds all state, the non-durable too, at `applied` (R12). False after a restart."""
    applied: LogIndex
    """How far its memory has applied the log; a deposed primary's may lie beyond where the logs agree, and is lost then."""
    takes_blocks: bool = False
    """A whole snapshot may have items in blocks (`item_blocks`)."""
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""

    @property
    def outline(self) -> LogOutline:
        return LogOutline(self.epochs, self.log_end, self.reigns)


class Acknowledge(ReplicationMessage, frozen=True):
    """Everything up to `log_end` is durable at this backup (of `incarnation`). Also its heartbeat."""

    broker: BrokerId
    incarnation: Incarnation
    log_end: LogIndex


class Refuse(ReplicationMessage, frozen=True):
    """A vote "no" on an open transaction (the note's cancelled subscription); later than its `prepare` it is ignored."""

    broker: BrokerId
    incarnation: Incarnation
    transaction: TransactionKey
    reason: str


class SubscriptionAccepted(ReplicationMessage, frozen=True):
    """How the backup joins. It cuts everything behind `agreed`, then gets what is said here, then `Frames` without end."""

    agreed: LogIndex
    """Up to here the two logs are the same. Frames follow from `agreed` + 1, unless the snapshot is whole."""
    snapshot_index: LogIndex
    """0: no snapshot. Otherwise one at this index follows, in `SnapshotChunk`s."""
    is_snapshot_whole: bool
    """True: durable and transient items; it replaces disk and memory, and frames follow from `snapshot_index` + 1.
    False: transient items only, to be laid over the durable state at `snapshot_index` (R12)."""
    epochs: EpochStarts
    """The primary's epoch table up to the snapshot."""
    time_ms: int
    """Commit time at the snapshot."""
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""


class SubscriptionRefused(ReplicationMessage, frozen=True):
    """This process is not the primary of that epoch, or gives up. The epoch is the highest that it knows."""

    reason: str
    missing_from: LogIndex = LogIndex(0)
    """Not 0: the disk, which the map names, has lost what was acknowledged on it, from this index on. It is damaged (R10)."""


class OpenProgress(msgspec.Struct, frozen=True, array_like=True):
    """What a primary knows of an open transaction beyond the log."""

    transaction: TransactionKey
    session: SessionKey
    """Whose share of open transactions it counts in."""
    remaining_ms: int
    """Of its time-out; 0: it has none."""
    sequences: tuple[tuple[SessionKey, int], ...]
    """(session, operations taken from it)."""
    ordinal: int
    bytes: int
    places: int


HELD_IN_ONE = 500
"""Messages in one part of what is held: as much as is taken up in one step."""


class HeldMessages(msgspec.Struct, frozen=True, array_like=True):
    """A part of what sessions hold, at the same places of three columns of numbers: whose, of which queue, which messages. Those
    of one session and queue are neighbours. However many they are, little is to be freed.
    """

    sessions: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    queues: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    positions: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))

    def add(self, session: SessionKey, queue: QueueId, positions: Sequence[int]) -> None:
        """For whoever makes it."""
        self.sessions.extend([session] * len(positions))
        self.queues.extend([queue] * len(positions))
        self.positions.extend(positions)

    def by_holder(self) -> Iterator[tuple[SessionKey, QueueId, list[QueuePosition]]]:
        """What is in it of each session and queue, in its order."""
        begin = 0
        for (session, queue), alike in groupby(zip(self.sessions, self.queues, strict=True)):
            end = begin + sum(1 for _ in alike)
            positions = [QueuePosition(position) for position in self.positions[begin:end]]
            yield SessionKey(session), QueueId(queue), positions
            begin = end


class HandedOver(ReplicationMessage, frozen=True):
    """The last word of a primary that stops for another: `to` stands for promotion at once, everybody else a moment later.

    It says what is in no log; that holds for whoever leads the next epoch behind the same log, and for nobody else.
    """

    to: BrokerId
    log_end: LogIndex = LogIndex(0)
    """Of the primary's log, which was sent before this; 0: nothing is handed on."""
    open: tuple[OpenProgress, ...] = ()
    """Every transaction that is open there."""
    held: tuple[HeldMessages, ...] = ()
    is_chosen: bool = False
    """Somebody said that `to` should lead: it does not give the set back to its first broker by itself."""


class SnapshotChunk(ReplicationMessage, frozen=True):
    """A part of the snapshot."""

    items: tuple[StateItem, ...]
    is_last: bool


FRAMES_IN_ONE = 1000
"""In one message: a backup checks each, in one step."""


class Frames(ReplicationMessage, frozen=True):
    """The log: (durable part, transient part) of consecutive frames, and the commit index; without frames a heartbeat."""

    frames: tuple[tuple[bytes, bytes], ...]
    commit_index: LogIndex


ToPrimary = Subscribe | Acknowledge | Refuse
ToBackup = SubscriptionAccepted | SubscriptionRefused | HandedOver | SnapshotChunk | Frames
