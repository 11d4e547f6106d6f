"""A set's journal in memory: its segments, where each frame lies, the epoch table and the log's end. It performs nothing.

Law: the journal describes what is durable and nothing else: it is told of a group when the group's sync has returned. Frames
follow each other without gaps, epochs never fall. Segments are a chain: each is continued by the next number, unless a seal in
the meta file says by which (see `meta.Seal`). Only the last segment is written to, and never where anything durable is; the place
of a group that was not synced is written again if nothing of its header is there after a crash.
A segment leaves the chain at its beginning; below it there may be some that are owed to readers.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.epoch_table import EpochTable
from lockstep.core.frames import FrameHeader
from lockstep.core.ids import Epoch, LogIndex, TimeMs
from services.store.core.journal_format import SEGMENT_HEADER_BYTES
from services.store.core.meta import OwedSegment
from services.store.core.owed_segments import OwedSegments
from services.store.core.segment import FramesAt, Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut comes to: segment `number` ends at `end`, those of `given_up` are void."""

    number: int
    end: int
    given_up: tuple[int, ...]


class Journal:
    """The journal of one set that is open. Lives from one opening to the next; driven by its `StoredSet`."""

    __slots__ = (
        "base",
        "begun",
        "epochs",
        "is_last_closed",
        "last_time_ms",
        "next_number",
        "owed",
        "segments",
    )

    def __init__(
        self,
        base: LogIndex,
        epochs: EpochTable,
        time_ms: TimeMs,
        next_number: int,
        owed: Sequence[OwedSegment] = (),
    ) -> None:
        self.base = base
        """Index of the snapshot that it continues: the log's end while there are no frames."""
        self.epochs = epochs
        self.last_time_ms = time_ms
        self.segments: list[Segment] = []
        """The chain, ascending."""
        self.is_last_closed = True
        """Nothing is written to the last segment any more (it is sealed), or there is none: the next group goes to
        `next_number`.
        """
        self.next_number = next_number
        """Number of the segment that will continue the chain."""
        self.begun: set[int] = set()
        """Segments, also such as have left the chain, that were created since the opening and not cut: they hold no rests of a
        group that was not synced, and nothing behind their end.
        """
        self.owed = OwedSegments(owed)
        """What has left the chain and stays for readers."""

    @property
    def end(self) -> LogIndex:
        """Highest index that is durable here."""
        for segment in reversed(self.segments):
            if lasts := segment.lasts:
                last = LogIndex(lasts[-1])
                return last if last > self.base else self.base
        return self.base

    @property
    def lowest(self) -> LogIndex:
        """The lowest index from which on every frame up to the end is there to be read; `end` + 1: none is."""
        lowest = LogIndex(self.end + 1)
        for segment in reversed(self.segments):
            if not segment.is_empty:
                if segment.last + 1 != lowest:
                    return lowest
                lowest = segment.first
        return self.owed.lowest(lowest)

    @property
    def bytes_total(self) -> int:
        """Bytes of the chain's segment files."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def room(self) -> int:
        """Bytes that still fit the segment that is written to; 0 if there is none."""
        return 0 if self.is_last_closed else self.segments[-1].size_bytes - self.segments[-1].end

    def epoch_of(self, index: LogIndex) -> Epoch | None:
        """Epoch of the record at `index`; None behind the end."""
        return self.epochs.epoch_at(index) if index <= self.end else None

    def add_segment(self, number: int, size_bytes: int) -> Segment:
        """A new segment, durably created, is written to from now on."""
        assert number == self.next_number, (
            f"segment {number} does not continue the chain, {self.next_number} does"
        )
        self.segments.append(Segment(number, size_bytes))
        self.begun.add(number)
        self.is_last_closed, self.next_number = False, number + 1
        return self.segments[-1]

    def add_group(self, frames: list[FrameHeader], body_at: int) -> None:
        """A group whose frames lie from `body_at` on in the last segment has become durable."""
        segment, offset = self.segments[-1], body_at
        for header in frames:
            segment.add(offset, header)
            offset += header.frame_bytes
            self.epochs.observe(header.epoch, header.first, header.reign)
        segment.end = offset
        self.last_time_ms = max(self.last_time_ms, frames[-1].time_ms)

    def plan_cut(self, index: LogIndex) -> Cut | None:
        """What cutting everything behind `index` comes to; None if no frame (and not the snapshot) ends with `index`."""
        is_at_end = index == self.base
        for place, segment in enumerate(self.segments):
            at = bisect_left(segment.lasts, index + 1)
            if segment.is_empty or (at == len(segment.lasts) and place + 1 < len(self.segments)):
                # Wholly kept. Not sealed even if it ends with `index`: what continues a segment never changes.
                is_at_end = is_at_end or (not segment.is_empty and segment.last == index)
                continue
            given_up = tuple(later.number for later in self.segments[place + 1 :])
            if at > 0:
                return (
                    Cut(segment.number, segment.ends[at - 1], given_up)
                    if segment.lasts[at - 1] == index
                    else None
                )
            return Cut(segment.number, SEGMENT_HEADER_BYTES, given_up) if is_at_end else None
        return None

    def cut(self, index: LogIndex, cut: Cut, next_number: int) -> None:
        """The cut of `plan_cut` has become durable; the chain goes on with `next_number`."""
        place = next(place for place, segment in enumerate(self.segments) if segment.number == cut.number)
        del self.segments[place + 1 :]
        segment = self.segments[place]
        count = bisect_left(segment.lasts, index + 1)
        del segment.starts[count:], segment.ends[count:], segment.lasts[count:]
        segment.end = cut.end
        self.begun -= {cut.number, *cut.given_up}
        self.epochs.cut(index)
        self.is_last_closed, self.next_number = True, next_number

    def frames_behind(
        self, index: LogIndex, until: LogIndex, bytes_max: int, to: LogIndex | None = None
    ) -> FramesAt | None:
        """`Segment.frames_behind` of the chain's first segment that has any frame behind `index`."""
        for segment in self.segments:
            if not segment.is_empty and segment.last > index:
                return segment.frames_behind(index, until, bytes_max, to)
        return None

    def bytes_between(self, index: LogIndex, until: LogIndex) -> int:
        """Bytes of the frames behind `index` that end at or below `until`."""
        total = 0
        for segment in reversed(self.segments):
            lasts = segment.lasts
            if not lasts:
                continue
            if lasts[-1] <= index:
                break
            first = bisect_left(lasts, index + 1)
            limit = bisect_left(lasts, until + 1)
            if first < limit:
                total += segment.ends[limit - 1] - segment.starts[first]
        return total

    def closed_up_to(self, commit_index: LogIndex) -> list[Segment]:
        """The leading segments that nothing is written to any more and that lie wholly at or below the commit index (R11)."""
        closed = []
        for segment in self.segments if self.is_last_closed else self.segments[:-1]:
            if not segment.is_empty and segment.last > commit_index:
                break
            closed.append(segment)
        return closed

    def spans(self, number: int, begin: LogIndex) -> None:
        """The earliest of the transactions that were found to end in a segment of the chain began at `begin`; 0: none did."""
        segment = next(segment for segment in self.segments if segment.number == number)
        if begin:
            segment.spans_from = min(begin, segment.spans_from or begin)

    def let_go(self, number: int, covered: LogIndex, is_owed: bool) -> None:
        """The chain's first segment leaves it: the snapshot, durable at `covered`, holds what it held. `is_owed`: it stays for
        readers, and the snapshot's meta says so.
        """
        segment = self.segments.pop(0)
        assert segment.number == number, f"segment {number} is not the first, {segment.number} is"
        self.base = max(self.base, covered)
        if is_owed:
            self.owed.take(segment)

    def first_number(self) -> int:
        """The lowest segment of the chain, or the one that will be."""
        return self.segments[0].number if self.segments else self.next_number
