"""What others than the writer ask of a set: control and inspection RPCs of `store.proto`.

Law: readers see nothing beyond the commit index (DESIGN R11), and none of them becomes the writer.
"""

from dataclasses import dataclass

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
    """Snapshot items in key order from `from_key` on. Answered with `ItemsRead`, any number of times; the last says so."""

    from_key: bytes


@dataclass(frozen=True, slots=True)
class ReadFrames(ReaderRequest):
    """Frames behind the snapshot or from `from_index` on, up to the commit index. Answered with `FramesRead` like `ReadItems`."""

    from_index: LogIndex


@dataclass(frozen=True, slots=True)
class ReadContents(ReaderRequest):
    """Contents of messages. Answered with `ContentsRead`."""

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
    """(properties, body) in the order asked for; None for one that is not there."""

    contents: tuple[tuple[bytes, bytes] | None, ...]


@dataclass(frozen=True, slots=True)
class ReadRefused:
    code: ErrorCode
    message: str
    highest_epoch: Epoch


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
    damage: str


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


AnyReaderRequest = FenceSet | SurveySet | ReadItems | ReadFrames | ReadContents
AnyReaderAnswer = SetFenced | SetSurveyed | ItemsRead | FramesRead | ContentsRead | ReadRefused
