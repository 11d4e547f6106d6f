"""Entry runs: places in a queue that were published together, kept as one as long as they are together.

Law: a run's positions are neighbours, and so are the contents that they refer to: all of one publish record, made visible by one
record. Whether an entry is kept alone or in a run is nobody's business but the queue's.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import filterfalse, islice

from lockstep.core.ids import ORDINAL_BITS, QueuePosition, neighbours


class EntryRun:
    """One run, as long as any of it is left."""

    __slots__ = ("_gone", "end", "first", "left", "shift", "size")

    def __init__(self, positions: range, shift: int, size: int) -> None:
        self.first: QueuePosition = positions.start  # type: ignore[assignment]
        """The first that is left."""
        self.end = positions.stop
        """Behind the last one."""
        self.shift = shift
        """A message's id, less its position."""
        self.size = size
        """Bytes of the messages that are left."""
        self.left = len(positions)
        self._gone: set[int] | None = None
        """Of those between `first` and `end`; None: never any."""

    def __lt__(self, position: int) -> bool:
        """Whether all of it lies before a position; for `bisect`."""
        return self.end <= position

    def positions(self, start: int = 0, limit: int | None = None) -> Sequence[QueuePosition]:
        """Those that are left, from `start` on, at most `limit`."""
        found = range(max(self.first, start), self.end)
        if not self._gone:
            return found[:limit]  # type: ignore[return-value]
        left = islice(filterfalse(self._gone.__contains__, found), limit)
        return [QueuePosition(number) for number in left]

    def pieces(self) -> list[Sequence[QueuePosition]]:
        """Those that are left, as ranges of neighbours."""
        if not self._gone:
            return [range(self.first, self.end)]  # type: ignore[list-item]
        return neighbours(self.positions())

    @property
    def has_gaps(self) -> bool:
        """Whether some are gone between those that are left."""
        return bool(self._gone)

    def has(self, position: QueuePosition) -> bool:
        """Whether this position is in it, and left."""
        return self.first <= position < self.end and not (self._gone and position in self._gone)

    def left_of(self, positions: Sequence[QueuePosition]) -> Sequence[QueuePosition]:
        """Of neighbours between `first` and `end`, those before the first one that is gone."""
        if not self._gone or self._gone.isdisjoint(positions):
            return positions
        gone = next(place for place, position in enumerate(positions) if position in self._gone)
        return positions[:gone]

    def remove(self, positions: Sequence[QueuePosition], size: int) -> None:
        """Some neighbours of those that are left, but not all of these, are gone. `size`: bytes of their messages."""
        self.left -= len(positions)
        self.size -= size
        if positions[0] == self.first:
            first: int = positions[-1] + 1
            while self._gone and first in self._gone:
                self._gone.remove(first)
                first += 1
            self.first = QueuePosition(first)
        elif self._gone is None:
            self._gone = set(positions)
        else:
            self._gone.update(positions)


class EntryRuns:
    """The runs of one queue."""

    __slots__ = ("by_index",)

    def __init__(self) -> None:
        self.by_index: dict[int, list[EntryRun]] = {}
        """Ascending, by the index of the record that made them visible: more than one if its transaction published in parts. Only
        this changes it; others ask it whether there are any, and of how many records."""

    def find(self, position: QueuePosition) -> EntryRun | None:
        """The run that has this position, which is not gone."""
        runs = self.by_index.get(position >> ORDINAL_BITS)
        if runs is None:
            return None
        place = 0 if len(runs) == 1 else bisect_left(runs, position)
        if place == len(runs):
            return None
        run = runs[place]
        return run if run.has(position) else None

    def add(self, run: EntryRun) -> None:
        """One behind all others."""
        self.by_index.setdefault(run.first >> ORDINAL_BITS, []).append(run)

    def remove(self, run: EntryRun) -> None:
        """All of it is gone."""
        index = run.first >> ORDINAL_BITS
        run.left, run.first = 0, run.end  # type: ignore[assignment]
        runs = self.by_index[index]
        if len(runs) == 1:
            del self.by_index[index]
        else:
            runs.remove(run)


def contiguous(positions: Sequence[QueuePosition], place: int, run: EntryRun) -> Sequence[QueuePosition]:
    """The longest piece of `positions`, from `place` on, that lies side by side in a run, which has the first of it."""
    first = positions[place]
    last = min(len(positions), place + run.end - first) - 1
    if positions[last] - first != last - place:
        # Of ascending numbers, those that are neighbours of the first come first.
        low, high = place, last
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if positions[middle] - first == middle - place else (low, middle - 1)
        last = low
    piece: Sequence[QueuePosition] = range(first, first + last - place + 1)  # type: ignore[assignment]
    return run.left_of(piece) if tuple(positions[place : last + 1]) == tuple(piece) else (first,)
