"""Entry pages: some neighbouring entries of a queue, in their order.

Law: looking through a page is little, so it is done in one go, whatever was asked for. A page knows no other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby

from lockstep.core.entry_runs import EntryRun, EntryRuns, contiguous
from lockstep.core.ids import MessageId, QueuePosition

PAGE_ENTRIES = 4096
"""Runs, or entries that are kept one by one, with which a page counts as full: a look through it is a millisecond's work."""
SLACK = 64
"""Positions without an entry that a page's order may keep beyond the number of entries: removing stays O(1) amortised."""

Piece = tuple[Sequence[QueuePosition], Sequence[MessageId]]
"""Entries in the order of their positions, and whose places they are: ranges where both are neighbours."""
Element = QueuePosition | EntryRun
"""What is in an order: an entry that is kept by itself, or a run."""
Pairs = Sequence[tuple[QueuePosition, MessageId]]


class EntryPage:
    """Some neighbouring entries, as long as any of them is there."""

    __slots__ = ("first", "order", "runs", "single", "start")

    def __init__(self, first: int) -> None:
        self.first = first
        """No entry on it has a lower position, unless it is the first page."""
        self.single: dict[QueuePosition, MessageId] = {}
        self.runs = EntryRuns()
        """What was published together and is together still; all other entries are kept one by one."""
        self.order: list[Element] = []
        """Ascending, from `start` on: all entries, and some that are gone."""
        self.start = 0

    @property
    def is_empty(self) -> bool:
        return not (self.single or self.runs.by_index)

    def skip_gone(self) -> None:
        """Move `start` to the first entry. O(1) amortised."""
        order, single, start = self.order, self.single, self.start
        while start < len(order):
            element = order[start]
            if element.left if type(element) is EntryRun else element in single:
                break
            start += 1
        self.start = start

    def trim(self, elements_max: int) -> None:
        """Clear away what is gone in front, and all of it if more elements than these are left then."""
        self.skip_gone()
        # Mostly what was in front is gone, and nobody needs to look at the rest.
        del self.order[: self.start]
        self.start = 0
        if len(self.order) > elements_max:
            single = self.single
            self.order = [
                each for each in self.order if (each.left if isinstance(each, EntryRun) else each in single)
            ]

    def clear(self) -> None:
        """Nothing is left."""
        self.single.clear()
        self.order.clear()
        self.start = 0

    def positions(self, start: int, limit: int | None, found: list[QueuePosition]) -> None:
        """Add positions from `start` on, ascending, until `limit` are found."""
        single, order, has_runs = self.single, self.order, bool(self.runs.by_index)
        place = max(self.start, bisect_left(order, start)) if start else self.start
        if not has_runs and limit is None:
            found += [position for position in order[place:] if position in single]
            return
        while place < len(order) and (limit is None or len(found) < limit):
            element = order[place]
            if type(element) is EntryRun:
                found += element.positions(start, limit and limit - len(found))
                place += 1
            elif has_runs:
                if element in single:
                    found.append(element)
                place += 1
            else:
                step = order[place : place + limit - len(found)]  # type: ignore[operator]
                found += [position for position in step if position in single]
                place += len(step)

    def pieces(
        self, positions: Sequence[QueuePosition]
    ) -> Iterator[tuple[EntryRun | None, Sequence[QueuePosition]]]:
        """Those of these positions that are there, in their order: neighbours in one run, and lists of those that are in none.
        Whoever goes through the pieces may take out each as it comes.
        """
        single, runs = self.single, self.runs
        if not runs.by_index:
            found = [position for position in positions if position in single]
            if found:
                yield None, found if len(set(found)) == len(found) else list(dict.fromkeys(found))
            return
        alone: dict[QueuePosition, None] = {}
        place = 0
        while place < len(positions):
            position = positions[place]
            if position in single:
                alone[position] = None
                place += 1
                continue
            run = runs.find(position)
            if run is None:
                place += 1
                continue
            if alone:
                yield None, list(alone)
                alone = {}
            piece = contiguous(positions, place, run)
            place += len(piece)
            yield run, piece
        if alone:
            yield None, list(alone)

    def ids(self, run: EntryRun | None, piece: Sequence[QueuePosition]) -> Sequence[MessageId]:
        """Whose places these are, which are a piece."""
        if run is None:
            single = self.single
            return [single[position] for position in piece]
        first = piece[0] + run.shift
        return range(first, first + len(piece))  # type: ignore[return-value]

    def pieces_of(self, part: Sequence[Element]) -> Iterator[Piece]:
        """The entries in a part of the order."""
        single = self.single
        for is_run, elements in groupby(part, _is_run):
            if is_run:
                runs = [run for run in elements if type(run) is EntryRun and run.left]
                yield from ((piece, self.ids(run, piece)) for run in runs for piece in run.pieces())
            elif alone := [position for position in elements if position in single]:
                yield alone, [single[position] for position in alone]

    def insert(self, part: Pairs | EntryRun) -> None:
        """Put entries, or a run, between those that are there."""
        if isinstance(part, EntryRun):
            self.runs.add(part)
            self._insert(part)
            return
        self.single.update(part)
        positions = [position for position, _ in part]
        if not self.order or last_of(self.order[-1]) < positions[0]:
            self.order += positions
            return
        for position in positions:
            self._insert(position)

    def _insert(self, element: Element) -> None:
        place = bisect_left(self.order, first_of(element))
        self.order.insert(place, element)
        self.start = min(self.start, place)

    def split(self) -> EntryPage:
        """Leave about half of the entries to another page behind this one."""
        half = len(self.order) // 2
        behind = EntryPage(first_of(self.order[half]))
        behind.order, self.order = self.order[half:], self.order[:half]
        self.start = min(self.start, half)
        self.runs = EntryRuns()
        for page in (self, behind):
            for element in page.order:
                if type(element) is EntryRun:
                    if element.left:
                        page.runs.add(element)
                elif page is behind and element in self.single:
                    behind.single[element] = self.single.pop(element)
        return behind


def first_of(element: Element) -> int:
    """Its first position."""
    return element.first if isinstance(element, EntryRun) else element


def last_of(element: Element) -> int:
    """Its last position."""
    return element.end - 1 if isinstance(element, EntryRun) else element


def _is_run(element: Element) -> bool:
    return type(element) is EntryRun
