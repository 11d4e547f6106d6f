"""Position sets: some entries of a queue, by their positions; on pages, if they are many.

Law: no step makes room for many entries anew, frees all of them or looks for the first among all of them. Few are one plain
set, as nearly always: nobody pays for pages then.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from lockstep.core.content_shelf import SHELF_BITS
from lockstep.core.ids import QueuePosition
from lockstep.core.taking_apart import emptied, length_of

FEW_MAX = 16_384
"""So many are put on pages in some milliseconds, wherever they are."""

PART_MAX = 500
"""Those that are gone through in one step, where they are many."""


class PositionSet(Collection[QueuePosition]):
    """Lives as long as whoever has it, who alone changes it."""

    __slots__ = ("_length", "few", "pages")

    def __init__(self) -> None:
        self.few: set[QueuePosition] = set()
        """All of them, while there are no pages. Whoever asks for every message whether there is anything at all looks here and
        at the pages, which takes a tenth of the time."""
        self.pages: dict[int, dict[QueuePosition, None]] = {}
        """All of them from `FEW_MAX` on, until none is left: by the records of the positions, as many as a shelf is for; none is
        empty. (The garbage collector goes through any set, and through no `dict` that has numbers alone.)"""
        self._length = 0
        """Of those on pages."""

    def __len__(self) -> int:
        return self._length if self.pages else len(self.few)

    def __bool__(self) -> bool:
        return bool(self.few or self.pages)

    def __contains__(self, position: object) -> bool:
        if not self.pages:
            return position in self.few
        page = self.pages.get(position >> SHELF_BITS)  # type: ignore[operator]
        return page is not None and position in page

    def __iter__(self) -> Iterator[QueuePosition]:
        """In ascending order."""
        yield from sorted(self.few)
        for number in sorted(self.pages):
            yield from sorted(self.pages[number])

    def parts(self) -> Iterator[list[QueuePosition]]:
        """The same as going through it, a few at a time; what it has already given may leave meanwhile."""
        if not self.pages:
            few = sorted(self.few)
            for begin in range(0, len(few), PART_MAX):
                yield few[begin : begin + PART_MAX]
            return
        for number in sorted(self.pages):
            if (page := self.pages.get(number)) is not None:
                positions = sorted(page)
                for begin in range(0, len(positions), PART_MAX):
                    yield positions[begin : begin + PART_MAX]

    def among(self, positions: Iterable[QueuePosition]) -> set[QueuePosition]:
        """Those of these that are in it."""
        pages = self.pages
        if not pages:
            return self.few.intersection(positions)
        return {
            each for each in positions if (page := pages.get(each >> SHELF_BITS)) is not None and each in page
        }

    def has_all(self, positions: Iterable[QueuePosition]) -> bool:
        pages = self.pages
        if not pages:
            return self.few.issuperset(positions)
        return all((page := pages.get(each >> SHELF_BITS)) is not None and each in page for each in positions)

    def first(self) -> QueuePosition | None:
        """None: it is empty."""
        return min(self.pages[min(self.pages)] if self.pages else self.few, default=None)

    def update(self, positions: Collection[QueuePosition]) -> None:
        """These are in it, too."""
        few = self.few
        if self.pages or len(few) + len(positions) > FEW_MAX:
            if few:
                self._put(few)
                few.clear()
            self._put(positions)
        else:
            few.update(positions)

    def _put(self, positions: Collection[QueuePosition]) -> None:
        pages = self.pages
        for number, some in _by_page(positions):
            page = pages.get(number)
            if page is None:
                page = pages[number] = {}
            before = len(page)
            page.update(dict.fromkeys(some))
            self._length += len(page) - before

    def difference_update(self, positions: Collection[QueuePosition]) -> None:
        """These are not in it any more, if they were."""
        pages = self.pages
        if not pages:
            self.few.difference_update(positions)
            return
        for number, some in _by_page(positions):
            page = pages.get(number)
            if page is not None:
                before = len(page)
                for position in some:
                    page.pop(position, None)
                self._length -= before - len(page)
                if not page:
                    del pages[number]

    def take_apart(self) -> Iterator[int]:
        """Nobody has it any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self.few)
        yield from emptied(self.pages, length_of)
        self._length = 0


def _by_page(positions: Collection[QueuePosition]) -> Iterator[tuple[int, list[QueuePosition]]]:
    """Positions by the numbers of their pages."""
    ordered, begin = sorted(positions), 0
    while begin < len(ordered):
        number = ordered[begin] >> SHELF_BITS
        end = bisect_left(ordered, (number + 1) << SHELF_BITS, begin)
        yield number, ordered[begin:end]
        begin = end
