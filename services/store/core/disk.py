"""What the store's core wants done with a disk, and what comes back. The driver and the simulator perform the same steps.

Law: a job is a tuple of steps performed in order by one thread; the core has at most one job under way per (set, lane), and what
depends on a job waits for its `JobDone`. Steps marked *durable* survive a power loss when they have returned; the others may
be lost or torn, in 512-byte sectors, until a later durable step on the same file. A step that raises `DiskError` ends its job.
All steps speak of one set's directory: a meta file, numbered segment files, and the state snapshot.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import msgspec

from lockstep.core.ids import LogIndex, SetName
from lockstep.core.store_protocol import StateItem


class Lane(Enum):
    """Jobs of one lane follow each other; lanes of a set run side by side, each in a thread of its own."""

    JOURNAL = "journal"
    """Appends, opening, truncation, installation: everything that the writer asks for, in its order."""
    SNAPSHOT = "snapshot"
    """The log consolidator."""
    SPARE = "spare"
    """Creates the next segment before it is needed."""
    READ = "read"
    """Reads for others than the writer."""

    __hash__ = object.__hash__
    """Lanes are keys on the way of every append, and Enum's own hash is a call in Python."""


class Step(msgspec.Struct, frozen=True):
    """Base of all steps."""


# --- the meta file ----------------------------------------------------------------------------------------------------


class ReadMeta(Step, frozen=True):
    """-> the meta file's bytes, b"" when there is none. Creates the set's directory if it is not there; makes durable which files
    there are, and what they are called, for an earlier process may have been killed before it did.
    """


class WriteMeta(Step, frozen=True):
    """Replaces the meta file: old or new after a crash, never a mixture. Durable."""

    data: bytes


class MakeDiskId(Step, frozen=True):
    """-> a fresh `DiskId`."""


# --- segments ---------------------------------------------------------------------------------------------------------


class ListSegments(Step, frozen=True):
    """-> tuple of (number, file bytes), ascending."""


class CreateSegment(Step, frozen=True):
    """A file of `size_bytes`, `header` at its beginning; an old one of that number is replaced. Durable.

    Behind the header are zeros, or what a deleted segment of that size held. Raises FULL when less than `reserve_bytes` would be
    left on the file system, even without what other sets keep.
    """

    number: int
    size_bytes: int
    header: bytes
    reserve_bytes: int
    is_prefilled: bool = True
    """The zeros are written, so that later writes change nothing else of the file system. Not for one that is written at once."""


class WriteSegment(Step, frozen=True):
    """Writes `parts` one behind the other from `offset` on. Not durable."""

    number: int
    offset: int
    parts: tuple[bytes, ...]


class SyncSegment(Step, frozen=True):
    """As fdatasync: makes all writes to the segment durable. After a failure nothing cached of the file may be believed."""

    number: int


class SettleSegment(Step, frozen=True):
    """Before a recovery reads: makes durable what an earlier process wrote, and drops what is cached, so that reads show the
    disk.
    """

    number: int


class MeasureRoom(Step, frozen=True):
    """-> bytes that are free on the file system. Files that any set keeps for segments to come are given up while fewer than
    `wanted_bytes` are.
    """

    wanted_bytes: int


class ReadSegment(Step, frozen=True):
    """-> up to `length` bytes from `offset` on, fewer at the end of the file."""

    number: int
    offset: int
    length: int


class DeleteSegments(Step, frozen=True):
    """Deletes those that exist. May come back after a power loss."""

    numbers: tuple[int, ...]
    kept_max: int = 0
    """Files that may be kept, those of earlier deletions included, for segments to be created; until the set is opened again, or
    there is little room. What they hold will lie behind the end of other segments.
    """


class MoveAside(Step, frozen=True):
    """Moves segments and snapshot into the subdirectory `aside/<label>`; repeatable after a crash in the middle. Durable."""

    label: str


# --- the snapshot -----------------------------------------------------------------------------------------------------


class SnapshotStep(Step, frozen=True):
    """Base of those that need the snapshot. When one has failed, what was not flushed may be gone: until its meta was read
    again, or it was cleared, all others fail, too. So nobody goes on from what is no longer there.
    """


class ReadSnapshotMeta(SnapshotStep, frozen=True):
    """-> the bytes last written as `meta` of those that are there, b"" when there is no snapshot."""


class ReadSnapshotItems(SnapshotStep, frozen=True):
    """-> (items, is last chunk): items in key order with keys from `from_key` on, at least one, about `bytes_max` in all."""

    from_key: bytes
    bytes_max: int


class ReadSnapshotValues(SnapshotStep, frozen=True):
    """-> tuple of values (None: no such key), in the order of `keys`."""

    keys: tuple[bytes, ...]


class SnapshotWrite(SnapshotStep, frozen=True):
    """Puts, deletes and the snapshot's meta as one: all or nothing after a crash, and never without the writes before it. Not
    durable.
    """

    puts: tuple[StateItem, ...]
    deletes: tuple[bytes, ...]
    meta: bytes


class SnapshotFlush(SnapshotStep, frozen=True):
    """Makes all snapshot writes durable."""


class SnapshotClear(SnapshotStep, frozen=True):
    """Deletes the snapshot, its meta included. Durable; also the way out of an unreadable snapshot."""


class Compute(Step, frozen=True):
    """-> what `function` returns: work that is too long for whoever drives the core, done by the lane's thread. It touches
    nothing but what the procedure that waits for it owns, and no disk; it may raise `DiskError` for bytes that turn out to be
    bad. Behind it the lane rests `rest` times as long as it took, so that others have the processor.
    """

    function: Callable[[], Any]
    rest: float = 0.0


AnyStep = (
    ReadMeta
    | WriteMeta
    | MakeDiskId
    | ListSegments
    | CreateSegment
    | WriteSegment
    | SyncSegment
    | SettleSegment
    | MeasureRoom
    | ReadSegment
    | DeleteSegments
    | MoveAside
    | ReadSnapshotMeta
    | ReadSnapshotItems
    | ReadSnapshotValues
    | SnapshotWrite
    | SnapshotFlush
    | SnapshotClear
    | Compute
)
SnapshotChunk = tuple[tuple[StateItem, ...], bool]
StepResult = Any
"""What each step says behind `->`; None where it says nothing. The functions of `procedure` give it its type."""
Steps = tuple[AnyStep, ...]
"""A job."""
Results = tuple[StepResult, ...]


class DiskProblem(Enum):
    FULL = "full"
    """No room; nothing else is wrong."""
    FAILED = "failed"
    """An I/O error: what was written since the last durable step is unknown."""
    UNREADABLE = "unreadable"
    """An I/O error of a step that reads: bytes are there and do not come, this time at least."""
    CORRUPT = "corrupt"
    """Bytes are there and are not what was written."""


class DiskError(Exception):
    """A step failed. `step` is the one that did, None when the performer cannot say."""

    def __init__(self, problem: DiskProblem, message: str, step: Step | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message
        self.step = step


class Unusable(DiskError):
    """What is on the disk is whole, by its checksums, and no good: records of a committed frame, or items of the snapshot, that
    are none, or do not go with the others.
    """

    def __init__(self, first: LogIndex, message: str) -> None:
        super().__init__(DiskProblem.CORRUPT, message)
        self.first = first
        """First index of the frame; 0: it is the snapshot."""


class Disk(Protocol):
    """One data directory. The driver's performs on files, the simulator's on a virtual disk."""

    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        """Performs one step; raises `DiskError`. Called by several threads, never by two for the same (set, lane)."""
