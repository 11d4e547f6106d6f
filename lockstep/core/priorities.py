"""Priorities: which entries of a queue have another level than most, and where they are in the order in which they are delivered.

Law: a message's level is part of its content and never changes; what is here follows from the contents of the entries that are
there. Higher levels come first, and within a level positions ascend (JMS 2.0, 3.4.10; AMQP 1.0, 3.2.1). A queue without such
entries has none of this, and nobody pays for it.

Nothing grows with the number of entries: levels are kept on pages, and positions in chunks, so that one more or one less touches
one of each.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence

from lockstep.core.ids import QueuePosition
from lockstep.core.position_tables import PositionTable
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.taking_apart import emptied

_CHUNK = 512
"""Positions that are moved at most when one comes or goes, or twice as many."""


class SortedPositions:
    """Ascending positions, to which any may be added, and from which any may be taken."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[list[QueuePosition]] = []
        """None is empty."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, position: QueuePosition) -> None:
        """One that is not there; mostly behind all others."""
        chunks = self._chunks
        if not chunks:
            chunks.append([position])
            return
        number = len(chunks) - 1 if position > chunks[-1][-1] else self._chunk_of(position)
        chunk = chunks[number]
        insort(chunk, position)
        if len(chunk) > 2 * _CHUNK:
            # Of those that come in order the chunk before stays full.
            cut = 2 * _CHUNK if chunk[-1] == position else _CHUNK
            chunks.insert(number + 1, chunk[cut:])
            del chunk[cut:]

    def remove(self, position: QueuePosition) -> None:
        """One that is there."""
        number = self._chunk_of(position)
        chunk = self._chunks[number]
        place = bisect_left(chunk, position)
        assert chunk[place] == position, f"position {position} is not there"
        del chunk[place]
        if not chunk:
            del self._chunks[number]

    def take_apart(self) -> Iterator[int]:
        """As `Priorities.take_apart`."""
        yield from emptied(self._chunks, len)

    def from_(self, start: int, limit: int) -> list[QueuePosition]:
        """Those from `start` on, at most `limit`."""
        chunks, number = self._chunks, self._chunk_of(start)
        found: list[QueuePosition] = []
        while number < len(chunks) and len(found) < limit:
            chunk = chunks[number]
            begin = bisect_left(chunk, start) if not found else 0
            found += chunk[begin : begin + limit - len(found)]
            number += 1
        return found

    def __iter__(self) -> Iterator[QueuePosition]:
        return (position for chunk in self._chunks for position in chunk)

    def _chunk_of(self, position: int) -> int:
        """The first chunk that ends at a position or behind it."""
        return bisect_left(self._chunks, position, key=_last)


def _last(chunk: list[QueuePosition]) -> QueuePosition:
    return chunk[-1]


class Priorities:
    """Of one queue; lives while it has entries with another level than the default one. Only the queue changes it."""

    __slots__ = ("_levels", "_positions")

    def __init__(self) -> None:
        self._levels: PositionTable[int] = PositionTable()
        self._positions: dict[int, SortedPositions] = {}
        """By level; none is empty."""

    def __bool__(self) -> bool:
        return bool(self._positions)

    def level(self, position: QueuePosition) -> int:
        """Of any position: the default one if nothing else is known of it."""
        return self._levels.get(position, PRIORITY_DEFAULT)

    def levels(self) -> list[int]:
        """Those of which there are entries, and the default one, in the order in which they are delivered."""
        return sorted({*self._positions, PRIORITY_DEFAULT}, reverse=True)

    def of_level(self, level: int, start: int, limit: int) -> list[QueuePosition]:
        """Positions of a level that is not the default one, from `start` on, at most `limit`."""
        found = self._positions.get(level)
        return found.from_(start, limit) if found is not None else []

    def above_default(self, limit: int) -> list[QueuePosition]:
        """The first positions that are delivered before all of the default level, in that order, at most `limit`."""
        found: list[QueuePosition] = []
        for level in self.levels():
            if level == PRIORITY_DEFAULT or len(found) >= limit:
                break
            found += self.of_level(level, 0, limit - len(found))
        return found

    def items(self) -> Iterator[tuple[QueuePosition, int]]:
        """(position, level) of all, level by level."""
        return ((position, level) for level, found in self._positions.items() for position in found)

    def add(self, positions: Iterable[QueuePosition], levels: Sequence[int]) -> None:
        """Entries that are there now, and their levels; the default one is passed over."""
        for position, level in zip(positions, levels, strict=True):
            if level != PRIORITY_DEFAULT:
                self._levels[position] = level
                self._positions.setdefault(level, SortedPositions()).add(position)

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from self._levels.take_apart()
        for positions in self._positions.values():
            yield from positions.take_apart()

    def remove(self, positions: Collection[QueuePosition]) -> None:
        """Entries that are there no more."""
        for position in positions:
            level = self._levels.get(position)
            if level is not None:
                found = self._positions[level]
                found.remove(position)
                if not found:
                    del self._positions[level]
        self._levels.remove(positions)
