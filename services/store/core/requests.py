"""What others than the writer ask of a set: control and inspection RPCs of `store.proto`.

Law: readers see nothing beyond the commit index (DESIGN R11), and none of them becomes the writer.
"""

from dataclasses import dataclass

from lockstep.core.epoch_table import EpochStarts, Reigns
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import DiskId, Epoch, LogIndex, MessageId, SetName
from lockstep.core.store_protocol import StateItem


@dataclass(frozen=True, slots=True)
class ReaderRequest:
    """Base. `epoch` as in every request: lower ones than the highest seen are refused."""

    set_name: SetName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FenceSet(ReaderRequest):
    """Make the epoch durable. Answered with `SetFenced`."""


@dataclass(frozen=True, slots=True)
class SurveySet(ReaderRequest):
    """What this disk holds and remembers, for an operator (R1); `epoch` does not matter. Answered with `SetSurveyed`."""

    with_names: bool


@dataclass(frozen=True, slots=True)
class ReadItems(ReaderRequest):
    """Snapshot items in key order from `from_key` on. Answered with `ItemsRead`, any number of times; the last says so. All are
    of one state: refused with UNAVAILABLE when the snapshot was written to before the last was read, and while not all of it is
    known to be committed.
    """

    from_key: bytes


@dataclass(frozen=True, slots=True)
class ReadFrames(ReaderRequest):
    """Frames from the one that holds `from_index` on (0: from the lowest that is there), to the one that holds `to_index` (0: to
    the last), never beyond the commit index. Answered with `FramesRead` like `ReadItems`; refused with OUT_OF_RANGE below what
    is there.
    """

    from_index: LogIndex
    to_index: LogIndex = LogIndex(0)
    bytes_max: int = 0
    """About so many bytes of frames are read, at least one frame; 0: all."""


@dataclass(frozen=True, slots=True)
class ReadContents(ReaderRequest):
    """Contents of messages. Answered with `ContentsRead`, once: for the others, if it lacks any, there is another request."""

    messages: tuple[MessageId, ...]


@dataclass(frozen=True, slots=True)
class SetFenced:
    highest_epoch: Epoch
    log_end: LogIndex
    commit_index: LogIndex


@dataclass(frozen=True, slots=True)
class ItemsRead:
    items: tuple[StateItem, ...]
    snapshot_index: LogIndex
    is_last: bool


@dataclass(frozen=True, slots=True)
class FramesRead:
    frames: tuple[bytes, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class ContentsRead:
    """(properties, body) in the order asked for, None for one that is not there; of the first ones, where all are too much."""

    contents: tuple[tuple[bytes, bytes] | None, ...]


@dataclass(frozen=True, slots=True)
class ReadRefused:
    code: ErrorCode
    message: str
    highest_epoch: Epoch
    lowest_index: LogIndex = LogIndex(0)
    """Of OUT_OF_RANGE: the lowest that can be read."""


@dataclass(frozen=True, slots=True)
class SetStatus:
    """One set in short."""

    set_name: SetName
    disk: DiskId
    log_end: LogIndex
    snapshot_index: LogIndex
    commit_index: LogIndex
    highest_epoch: Epoch
    journal_bytes: int
    """Of the chain."""
    damage: str
    owed_bytes: int
    """Of segments below the chain, kept for readers."""
    lowest_index: LogIndex
    """The lowest from which on all frames can be read; behind the end: none can. 0: the set is not open."""
    fenced: int
    """Requests refused since the process started because a higher epoch, or another process, has the set."""


@dataclass(frozen=True, slots=True)
class SetSurveyed:
    """`last_epoch` is that of the log's last record, `status.highest_epoch` the highest that the disk was fenced with."""

    status: SetStatus
    last_epoch: Epoch
    map_bytes: bytes
    map_revision: int
    generation: str
    queues: tuple[str, ...]
    """Names of durable queues, and of durable exchanges; none unless they were asked for."""
    exchanges: tuple[str, ...]
    etcd_revision: int = 0
    """The highest of etcd that this disk was told, in `generation`; 0: none."""
    stamp: str = ""
    """The newest of etcd that this disk was told; "": none."""
    epochs: EpochStarts = ()
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""
    trouble: str = ""
    """Why the names are not all there; "": they are, or were not asked for."""


AnyReaderRequest = FenceSet | SurveySet | ReadItems | ReadFrames | ReadContents
AnyReaderAnswer = SetFenced | SetSurveyed | ItemsRead | FramesRead | ContentsRead | ReadRefused
