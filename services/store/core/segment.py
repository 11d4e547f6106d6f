"""One segment file in memory: where each of its frames lies."""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from lockstep.core.frames import FrameHeader
from lockstep.core.ids import LogIndex
from lockstep.core.replication import FRAMES_IN_ONE
from services.store.core.journal_format import SEGMENT_HEADER_BYTES


def _numbers() -> "array[int]":
    return array("Q")


@dataclass(frozen=True, slots=True)
class FramesAt:
    """A run of frames that lie in one segment, in one stretch of bytes (group headers may lie between them)."""

    segment: int
    offset: int
    length: int
    spans: tuple[tuple[int, int], ...]
    """(begin, end) of each frame, relative to `offset`."""
    last: LogIndex


@dataclass(slots=True)
class Segment:
    """One segment file. The three arrays have one element per frame."""

    number: int
    size_bytes: int
    end: int = SEGMENT_HEADER_BYTES
    """Where the next group goes."""
    first: LogIndex = LogIndex(0)
    """First index of its first frame; 0 while it has none. Frames of a segment follow each other without gaps."""
    spans_from: LogIndex = LogIndex(0)
    """Where the earliest began of the transactions that end in it, as far as it is consolidated; 0: none ends in it."""
    starts: "array[int]" = field(default_factory=_numbers, repr=False)
    ends: "array[int]" = field(default_factory=_numbers, repr=False)
    lasts: "array[int]" = field(default_factory=_numbers, repr=False)
    """Last index of each frame; ascending."""

    @property
    def is_empty(self) -> bool:
        return not self.lasts

    @property
    def last(self) -> LogIndex:
        """Last index of its last frame; it has one."""
        return LogIndex(self.lasts[-1])

    def add(self, start: int, header: FrameHeader) -> None:
        self.first = self.first if self.lasts else header.first
        self.starts.append(start)
        self.ends.append(start + header.frame_bytes)
        self.lasts.append(header.last)

    def frames_behind(
        self, index: LogIndex, until: LogIndex, bytes_max: int, to: LogIndex | None = None
    ) -> FramesAt | None:
        """Where the frames behind `index` lie, up to the last that ends at or below `until` and holds anything up to `to` (None:
        no such bound): as many as fit `bytes_max` and are no more than `FRAMES_IN_ONE`, at least one; None when there is none.
        """
        first = bisect_left(self.lasts, index + 1)
        limit = bisect_left(self.lasts, until + 1)
        if to is not None:
            limit = min(limit, bisect_left(self.lasts, to) + 1)
        if first >= limit:
            return None
        offset = self.starts[first]
        behind = bisect_right(self.ends, offset + bytes_max, first + 1, min(limit, first + FRAMES_IN_ONE))
        spans = tuple(
            (begin - offset, end - offset)
            for begin, end in zip(self.starts[first:behind], self.ends[first:behind], strict=True)
        )
        length = self.ends[behind - 1] - offset
        return FramesAt(self.number, offset, length, spans, LogIndex(self.lasts[behind - 1]))
