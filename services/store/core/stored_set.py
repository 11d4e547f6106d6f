"""One resource set in a store: what is known of it, and the way from requests to jobs and answers.

Law: requests of the writer are handled one after the other, in the order of their arrival, by procedures of the journal lane;
answers leave in that order, after the job that they report. The set has one writer: the stream and incarnation of the last
`OpenSet`. A failed job closes the set: nothing more is done for anybody until it is opened again, and opening reads everything
back from the disk.

Phases: UNREAD --opened--> OPEN --begin install--> INSTALLING --end install--> OPEN; any of them --failed job--> UNREAD.
"""

from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import EPOCH_MAX, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.store_protocol import (
    FREE_BYTES_UNKNOWN,
    AnyStoreAnswer,
    AnyStoreRequest,
    SetOpened,
    StoreRefused,
    StoreRequest,
)
from services.store.core.disk import DiskProblem, Lane
from services.store.core.journal import Journal
from services.store.core.limits import StoreLimits
from services.store.core.messages import Note, ReaderReply, Reply, StoreEffect
from services.store.core.meta import SetMeta, SnapshotMeta
from services.store.core.requests import (
    AnyReaderAnswer,
    AnyReaderRequest,
    FenceSet,
    ReadRefused,
    SetStatus,
    SurveySet,
)
from services.store.core.unreadable import Unreadable

if TYPE_CHECKING:
    from services.store.core.blocks import Scan


EPOCHS_USUAL = 1 << 48
"""Up to here any epoch is believed: a disk that is new to a set, or comes back after many reigns, cannot know where it stands."""
EPOCHS_AHEAD_MAX = 1 << 28
"""Above that a set goes on from the highest epoch that the disk has seen by so many at most, which is far more than a rebuilt map
leaves free. So nobody's word brings a disk near the last epoch of all."""


class Phase(Enum):
    UNREAD = "unread"
    """Nothing is known of the disk."""
    OPEN = "open"
    """The journal describes the disk. With `damage` it is only read."""
    INSTALLING = "installing"
    """A snapshot is being written; there is no journal."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that was not taken up yet."""

    stream: int
    request: AnyStoreRequest | FenceSet | SurveySet
    size: int
    """Bytes of its content, and what it takes beside that."""


@dataclass(frozen=True, slots=True)
class ReaderWaiting:
    """A reader's request that was not answered yet, or the rest of one."""

    stream: int
    request: AnyReaderRequest
    scan: "Scan | None" = None
    """Of the snapshot; its next chunk is the rest's first."""

    def reply(self, the: "StoredSet", answer: AnyReaderAnswer) -> None:
        the.effects.append(ReaderReply(self.stream, answer))

    def refuse(
        self, the: "StoredSet", code: ErrorCode, message: str, lowest_index: LogIndex = LogIndex(0)
    ) -> None:
        if code is ErrorCode.WRONG_EPOCH:
            the.fenced += 1
        self.reply(the, ReadRefused(code, message, the.meta.highest_epoch, lowest_index))


class StoredSet:
    """What the procedures of one set share. Lives as long as the process; `SetLanes` runs the procedures."""

    def __init__(self, name: SetName, limits: StoreLimits) -> None:
        self.name = name
        self.limits = limits
        self.phase = Phase.UNREAD
        self.meta = SetMeta(DiskId(""))
        """What the meta file holds."""
        self.journal: Journal | None = None
        """While OPEN."""
        self.snapshot: SnapshotMeta | None = None
        """What the snapshot holds, flushed or not."""
        self.is_snapshot_known = True
        """That it does. A step that failed may have taken what was not flushed; then it is asked for (`known_snapshot`)."""
        self.flushed_index = LogIndex(0)
        """Snapshot index that is durable; segments are dropped up to it only."""
        self.was_read = False
        """This process has read the disk before, so that the snapshot may hold what is not flushed."""
        self.damage = ""
        self.is_prefix_good = True
        """What lies before the damage is a state of the set: the snapshot is whole, or there is none."""
        self.unreadable = Unreadable(limits)
        self.corruption = ""
        """Damage that was met while reading, and that a recovery might not meet; it is damage at the next opening too."""
        self.corrupt_from = LogIndex(0)
        """Where in the log that is, before which all is good; 0: in the snapshot."""
        self.is_unusable = False
        """It is in what is whole, by its checksums."""
        self.writer: tuple[int, Incarnation] | None = None
        self.commit_told = LogIndex(0)
        """Highest commit index of the set as a broker told it or the disk knew it; may be above the log's end."""
        self.commit_reached = LogIndex(0)
        """Highest commit index that the log has reached in this process: one that ends below it has lost something."""
        self.acknowledged_end = LogIndex(0)
        """Last index that this process called durable, and has not begun to cut since: the same is true of it."""
        self.number_max = 0
        """Highest segment number ever used."""
        self.spare: int | None = None
        """A segment that is created and not yet used; it would be the journal's `next_number`."""
        self.readers: list[ReaderWaiting] = []
        """In the order of their turns."""
        self.loads = 0
        """Of snapshot and frames, under way in any lane: the consolidator waits for them."""
        self.unsent: Counter[int] = Counter()
        """Chunks that have not left yet, by stream."""
        self.silent_ticks: Counter[int] = Counter()
        """Since a chunk left, by stream for which no more is read until one does."""
        self.closed_streams: set[int] = set()
        """Closed while something was still being done for them."""
        self.busy: set[Lane] = set()
        """Lanes with a procedure under way."""
        self.waiting: deque[Waiting] = deque()
        self.waiting_bytes = 0
        """Of `waiting`."""
        self.effects: list[StoreEffect] = []
        """What this call of the core has come to so far."""
        self.must_close = ""
        """Why the set has to be closed once the journal lane is idle: something is wrong on the disk that another lane met."""
        self.is_chain_changing = False
        """The journal lane decides which segment continues the chain: no spare may be created meanwhile."""
        self.has_no_spare = False
        """The spare segment could not be created; not tried again before the next tick."""
        self.unremembered: dict[str, object] = {}
        """Fields of the meta file for which there was no room, and which nobody waits for."""
        self.has_no_memory = False
        """There was none the last time."""
        self.free_bytes = FREE_BYTES_UNKNOWN
        """On the file system, when it was measured last: with every group, and while something is owed with every tick."""
        self.roomy_bytes = 2 * limits.reserve_bytes
        """Nothing is kept that need not be while no more is free: brokers stop publishing when only the reserve is left."""
        self.is_room_stale = False
        """The room on the file system is to be measured again: something is kept that may have to make place."""
        self.segment_read: int | None = None
        """The segment that a reader of frames is reading: not deleted meanwhile."""
        self.appended_bytes = 0
        """Of groups, since the last tick."""
        self.fenced = 0
        """Requests refused because a higher epoch, or another process, has the set."""

    @property
    def commit_index(self) -> LogIndex:
        """Highest commit index known, as far as the log reaches: a learner hears of commits beyond its own end."""
        return min(self.commit_told, self.journal.end) if self.journal else LogIndex(0)

    def is_hung(self, stream: int) -> bool:
        """It has taken nothing for too long."""
        return self.silent_ticks[stream] > self.limits.silent_ticks_max

    @property
    def is_scanned(self) -> bool:
        """Somebody has a part of the snapshot, and takes the rest as it comes."""
        return any(reader.scan is not None and not self.is_hung(reader.stream) for reader in self.readers)

    @property
    def room(self) -> int:
        """Bytes that the journal may still take before the reserve is touched: in its segments, and on the disk."""
        if self.free_bytes == FREE_BYTES_UNKNOWN:
            return FREE_BYTES_UNKNOWN
        room = max(self.free_bytes - self.limits.reserve_bytes, 0)
        if self.journal is not None:
            room += self.journal.room + (self.limits.segment_bytes if self.spare is not None else 0)
        return room

    @property
    def unconsolidated_bytes_max(self) -> int:
        """What may lie behind the consolidator before it goes on at once: less where there is little room for it."""
        limits = self.limits
        most = limits.unconsolidated_most
        if self.free_bytes == FREE_BYTES_UNKNOWN:
            return most
        room = (self.free_bytes - limits.reserve_bytes) // limits.unconsolidated_part
        return min(most, max(room, limits.segment_bytes))

    @property
    def snapshot_index(self) -> LogIndex:
        """That is there at least."""
        if not self.is_snapshot_known:
            return self.flushed_index
        return self.snapshot.index if self.snapshot else LogIndex(0)

    def close(self) -> None:
        """Nothing is known of the disk any more; whoever wants to go on opens the set again."""
        if not self.damage:
            self.commit_reached = max(self.commit_reached, self.commit_index)
        self.phase, self.writer, self.journal, self.must_close = Phase.UNREAD, None, None, ""
        self.unremembered = {}  # Whoever opens it hears what it has, and tells the rest again.

    def found_corrupt(self, damage: str, first: LogIndex, is_unusable: bool) -> None:
        """Something is no good from `first` on, 0: the snapshot; of what was known to be none before that this says nothing."""
        if not self.corruption or first < self.corrupt_from:
            self.corruption, self.corrupt_from, self.is_unusable = damage, first, is_unusable

    def reply(self, stream: int, answer: AnyStoreAnswer) -> None:
        self.effects.append(Reply(stream, answer))

    def refuse(self, stream: int, request: StoreRequest, code: ErrorCode, message: str) -> None:
        if code is ErrorCode.WRONG_EPOCH:
            self.fenced += 1
        answer = StoreRefused(
            request.set_name, request.epoch, request.incarnation, code, message, self.meta.highest_epoch
        )
        self.effects.append(Reply(stream, answer))

    def note(self, event: str, details: str) -> None:
        self.effects.append(Note(self.name, event, details))

    def refusal_of(self, stream: int, request: StoreRequest) -> tuple[ErrorCode, str] | None:
        """Why `request` (not an `OpenSet`) may not be handled at all; None if it may."""
        if refusal := self.refusal_of_epoch(request.epoch):
            return refusal
        if self.phase is Phase.UNREAD:
            return ErrorCode.UNAVAILABLE, "the set is not open"
        if self.writer != (stream, request.incarnation):
            return ErrorCode.WRONG_EPOCH, "another process has opened the set since"
        return None

    def refusal_of_epoch(self, epoch: Epoch) -> tuple[ErrorCode, str] | None:
        """Why nobody is believed who speaks of that epoch: a higher one was seen, or no set comes to it. None: he is."""
        highest = self.meta.highest_epoch
        if epoch < highest:
            return ErrorCode.WRONG_EPOCH, f"epoch {epoch} is below {highest}"
        if epoch > min(max(highest, EPOCHS_USUAL) + EPOCHS_AHEAD_MAX, EPOCH_MAX):
            return ErrorCode.INVALID_ARGUMENT, f"no set goes from epoch {highest} to {epoch}"
        return None

    def opened(self, request: StoreRequest) -> SetOpened:
        """The answer that tells what the disk holds."""
        journal = self.journal
        assert journal is not None, "a set that is open has a journal"
        return SetOpened(
            request.set_name,
            request.epoch,
            request.incarnation,
            disk=self.meta.disk,
            log_end=journal.end,
            epochs=tuple(journal.epochs.entries),
            snapshot_index=self.snapshot_index,
            commit_index=self.commit_told if self.damage else self.commit_index,
            highest_epoch=self.meta.highest_epoch,
            map_bytes=self.meta.map_bytes,
            map_revision=self.meta.map_revision,
            generation=self.meta.generation,
            damage=self.damage,
            etcd_revision=self.meta.etcd_revision,
            stamp=self.meta.stamp,
            reigns=journal.epochs.reigns,
            is_unusable=self.is_unusable and self.damage == self.corruption != "",
            has_no_state=bool(self.damage) and not self.is_prefix_good,
        )

    def status(self) -> SetStatus:
        journal = self.journal
        return SetStatus(
            self.name,
            self.meta.disk,
            journal.end if journal else LogIndex(0),
            self.snapshot_index,
            self.commit_index,
            self.meta.highest_epoch,
            journal.bytes_total if journal else 0,
            self.damage,
            journal.owed.bytes_total if journal else 0,
            journal.lowest if journal else LogIndex(0),
            self.fenced,
        )

    def change_chain(self) -> Generator[tuple[()], tuple[()], None]:
        """From here on, until `is_chain_changing` is False again, no spare segment is being created."""
        self.is_chain_changing = True
        yield from self.wait_for(Lane.SPARE)

    def wait_for(self, *lanes: Lane) -> Generator[tuple[()], tuple[()], None]:
        """Until none of the lanes has anything under way."""
        while not self.busy.isdisjoint(lanes):
            yield ()


def code_of(problem: DiskProblem) -> ErrorCode:
    """What a broker is told when a step failed."""
    return ErrorCode.STORE_FULL if problem is DiskProblem.FULL else ErrorCode.UNAVAILABLE


def is_higher(epoch: Epoch, the: StoredSet) -> bool:
    return epoch > the.meta.highest_epoch
