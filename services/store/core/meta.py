"""The two small pieces of state beside the journal: a set's meta file and the snapshot's meta.

Law: the meta file is replaced as a whole and carries a checksum. While its `mark` is install or aside, the set's old state is
being removed and counts for nothing (DESIGN R8). The snapshot's meta is written in the same batch as the items that it speaks of.
"""

import google_crc32c
import msgspec

from lockstep.core.epoch_table import EpochStarts, Reigns
from lockstep.core.ids import DiskId, Epoch, LogIndex, TimeMs

MARK_INSTALL = "install"
"""A snapshot is being installed; a crash leaves an empty set with a new disk id."""
MARK_ASIDE = "aside"
"""The directory's content is being moved to aside/<disk>."""
MARK_LOST = "lost"
"""The meta file could not be read once, and was written again to fence an epoch: the set stays damaged."""
_CRC_BYTES = 4


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Segment `number` ends at `end` for ever and is continued by `next_number`: what lies behind or between is void.

    This is how a log is cut, durably, by one replacement of the meta file, and without overwriting anything: old frames
    behind a new end can never be taken for the log's continuation, because nothing is ever read or written there again.
    """

    number: int
    end: int
    next_number: int


class SetMeta(msgspec.Struct, frozen=True, array_like=True):
    """The meta file. Fields are added at the end with a default."""

    disk: DiskId
    highest_epoch: Epoch = Epoch(0)
    mark: str = ""
    map_bytes: bytes = b""
    map_revision: int = 0
    generation: str = ""
    commit_index: LogIndex = LogIndex(0)
    """Highest known when the file was written; never above what was durable here then."""
    first_segment: int = 1
    """Where the journal begins when there is no snapshot."""
    seals: tuple[Seal, ...] = ()
    etcd_revision: int = 0
    """The highest of etcd that a broker has told, in `generation`."""
    stamp: str = ""
    """The newest of etcd that a broker has told."""


class OwedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment below the chain that is kept for readers."""

    number: int
    size_bytes: int
    end: int
    """Offset behind its last group that counts; a seal may have ended it early, and is forgotten meanwhile."""
    first: LogIndex
    last: LogIndex
    spans_from: LogIndex = LogIndex(0)
    """As `Segment.spans_from`."""


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """What the snapshot's items are the state of. Fields are added at the end with a default."""

    index: LogIndex
    epochs: EpochStarts
    """The epoch table up to `index`: (epoch, first index)."""
    time_ms: TimeMs
    first_segment: int
    """The lowest segment that may hold frames behind `index`; all below are void, or owed."""
    owed: tuple[OwedSegment, ...] = ()
    """Ascending. One whose file is gone was dropped after this was written."""
    spans: tuple[tuple[int, LogIndex], ...] = ()
    """(number, spans_from) of the chain's segments in which transactions ended up to `index`."""
    reigns: Reigns = ()
    """Of `epochs`, as far as they are known."""
    is_installed: bool = False
    """A primary has sent it as it is: that all of it is committed does not follow from that it is here (R8)."""


class BadMeta(ValueError):
    """Bytes that are not an undamaged meta."""


_SET_DECODER = msgspec.msgpack.Decoder(SetMeta)
_SNAPSHOT_DECODER = msgspec.msgpack.Decoder(SnapshotMeta)
_ENCODER = msgspec.msgpack.Encoder()


def encode_meta(meta: SetMeta | SnapshotMeta) -> bytes:
    body = _ENCODER.encode(meta)
    crc: int = google_crc32c.value(body)
    return crc.to_bytes(_CRC_BYTES, "little") + body


def decode_set_meta(data: bytes) -> SetMeta:
    """Raises `BadMeta`."""
    try:
        return _SET_DECODER.decode(_checked(data))
    except msgspec.MsgspecError as error:
        raise BadMeta(str(error)) from error


def decode_snapshot_meta(data: bytes) -> SnapshotMeta:
    """Raises `BadMeta`."""
    try:
        return _SNAPSHOT_DECODER.decode(_checked(data))
    except msgspec.MsgspecError as error:
        raise BadMeta(str(error)) from error


def _checked(data: bytes) -> bytes:
    body = data[_CRC_BYTES:]
    if len(data) <= _CRC_BYTES or google_crc32c.value(body) != int.from_bytes(data[:_CRC_BYTES], "little"):
        raise BadMeta("wrong checksum")
    return body
