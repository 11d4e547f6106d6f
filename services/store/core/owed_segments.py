"""Segments that have left the journal's chain, because the snapshot covers them, and stay because they hold what is owed (5).

Law: they ascend, and only the oldest go. No state needs them: a recovery takes their list from the snapshot's meta and reads none
of them, and one that turns out to be bad is lost to its readers alone. Where frames lie is known of those that were read last.
"""

from bisect import bisect_left
from collections.abc import Sequence

from lockstep.core.ids import LogIndex
from services.store.core.meta import OwedSegment
from services.store.core.segment import Segment

TABLES_MAX = 8
"""Segments whose frames' places are kept in memory: about 24 bytes for each frame."""


class OwedSegments:
    """Of one set that is open. Lives from one opening to the next, as the journal that it belongs to."""

    __slots__ = ("_tables", "_unreadable", "bytes_total", "entries")

    def __init__(self, entries: Sequence[OwedSegment] = ()) -> None:
        self.entries = list(entries)
        self.bytes_total = sum(entry.size_bytes for entry in entries)
        """Bytes of the files."""
        self._tables: dict[int, Segment] = {}
        """The least recently used first."""
        self._unreadable: set[int] = set()

    def lowest(self, chain: LogIndex) -> LogIndex:
        """The lowest index from which on every frame is there, up to the chain, which begins at `chain`."""
        lowest = chain
        for entry in reversed(self.entries):
            if entry.last + 1 != lowest or entry.number in self._unreadable:
                break
            lowest = entry.first
        return lowest

    def holding(self, index: LogIndex) -> OwedSegment | None:
        """The first one with a frame that ends at or behind `index`."""
        place = bisect_left(self.entries, index, key=lambda entry: entry.last)
        return self.entries[place] if place < len(self.entries) else None

    def take(self, segment: Segment) -> None:
        """A segment of the chain becomes the youngest of these."""
        entry = owed_segment(segment)
        self.entries.append(entry)
        self.bytes_total += entry.size_bytes
        self.remember(segment)

    def count_up_to(self, index: LogIndex) -> int:
        """How many of the oldest lie wholly at or below `index`."""
        return bisect_left(self.entries, index + 1, key=lambda entry: entry.last)

    def drop(self, count: int) -> tuple[OwedSegment, ...]:
        """The oldest ones go; their files are the caller's to delete."""
        dropped, self.entries = tuple(self.entries[:count]), self.entries[count:]
        for entry in dropped:
            self.bytes_total -= entry.size_bytes
            self._tables.pop(entry.number, None)
            self._unreadable.discard(entry.number)
        return dropped

    def give_up(self, number: int) -> None:
        """Its bytes are not what was written: neither it nor what lies below it is offered to readers any more."""
        self._unreadable.add(number)
        self._tables.pop(number, None)

    def table(self, number: int) -> Segment | None:
        """Where its frames lie, if that is known."""
        table = self._tables.pop(number, None)
        if table is not None:
            self._tables[number] = table
        return table

    def remember(self, table: Segment) -> None:
        self._tables[table.number] = table
        if len(self._tables) > TABLES_MAX:
            del self._tables[next(iter(self._tables))]


def owed_segment(segment: Segment) -> OwedSegment:
    """What the meta says of a closed segment that has frames."""
    return OwedSegment(
        segment.number, segment.size_bytes, segment.end, segment.first, segment.last, segment.spans_from
    )
