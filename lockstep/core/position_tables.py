"""Position tables: what is said of some entries of a queue, by their positions, on pages.

Law: a page is for entries that neighbouring records made visible, and small however many entries something is said of, so that no
step makes room for all of them anew. Of most entries nothing is said, and an empty table costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from lockstep.core.content_shelf import SHELF_BITS
from lockstep.core.ids import QueuePosition
from lockstep.core.taking_apart import emptied, length_of

_Said = TypeVar("_Said")
_Otherwise = TypeVar("_Otherwise")


class PositionTable(Mapping[QueuePosition, _Said]):
    """Lives as long as its queue, which alone changes it."""

    __slots__ = ("_length", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, dict[QueuePosition, _Said]] = {}
        """By the records of the positions, as many as a shelf is for; none is empty. Whoever asks for every message whether
        anything is said at all looks here, which takes a tenth of the time."""
        self._length = 0

    # --- asking ---

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return bool(self.pages)

    def __contains__(self, position: object) -> bool:
        page = self.pages.get(position >> SHELF_BITS)  # type: ignore[operator]
        return page is not None and position in page

    def __iter__(self) -> Iterator[QueuePosition]:
        """In ascending order."""
        for number in sorted(self.pages):
            yield from sorted(self.pages[number])

    def __getitem__(self, position: QueuePosition) -> _Said:
        return self.pages[position >> SHELF_BITS][position]

    @overload
    def get(self, position: QueuePosition) -> _Said | None: ...
    @overload
    def get(self, position: QueuePosition, otherwise: _Said | _Otherwise) -> _Said | _Otherwise: ...
    def get(self, position: QueuePosition, otherwise: object = None) -> object:
        page = self.pages.get(position >> SHELF_BITS)
        return page.get(position, otherwise) if page is not None else otherwise

    def parts(self) -> Iterator[list[QueuePosition]]:
        """The same as going through it, a page at a time; what is said may change meanwhile."""
        for number in sorted(self.pages):
            if (page := self.pages.get(number)) is not None:
                yield sorted(page)

    def any_of(self, positions: Iterable[QueuePosition]) -> bool:
        """Whether something is said of one of these."""
        pages = self.pages
        return any((page := pages.get(each >> SHELF_BITS)) is not None and each in page for each in positions)

    def among(self, positions: Iterable[QueuePosition]) -> set[QueuePosition]:
        """Those of these of which something is said."""
        pages = self.pages
        return {
            each for each in positions if (page := pages.get(each >> SHELF_BITS)) is not None and each in page
        }

    def those_of(self, positions: Iterable[QueuePosition], said: _Said) -> list[QueuePosition]:
        """Those of these of which this is said, in their order."""
        pages = self.pages
        return [
            each
            for each in positions
            if (page := pages.get(each >> SHELF_BITS)) is not None and page.get(each) == said
        ]

    # --- changing ---

    def __setitem__(self, position: QueuePosition, said: _Said) -> None:
        page = self._page(position)
        self._length += position not in page
        page[position] = said

    def update(self, said: Iterable[tuple[QueuePosition, _Said]]) -> None:
        for position, value in said:
            self[position] = value

    def say(self, positions: Sequence[QueuePosition], said: _Said) -> None:
        """The same of entries that one record made visible, and of which nothing was said."""
        page = self._page(positions[0])
        before = len(page)
        page.update(dict.fromkeys(positions, said))
        self._length += len(page) - before

    def say_first(self, positions: Iterable[QueuePosition], said: _Said) -> None:
        """The same of those of which nothing is said."""
        number = -1
        page: dict[QueuePosition, _Said] = {}
        for position in positions:
            if position >> SHELF_BITS != number:
                number = position >> SHELF_BITS
                page = self._page(position)
            if position not in page:
                page[position] = said
                self._length += 1

    def count(self: PositionTable[int], positions: Iterable[QueuePosition]) -> None:
        """One more is said of each of these."""
        number = -1
        page: dict[QueuePosition, int] = {}
        for position in positions:
            if position >> SHELF_BITS != number:
                number = position >> SHELF_BITS
                page = self._page(position)
            said = page.get(position)
            self._length += said is None
            page[position] = 1 if said is None else said + 1

    def remove(self, positions: Iterable[QueuePosition]) -> None:
        """Nothing is said of these any more, if anything was."""
        pages = self.pages
        for position in positions:
            number = position >> SHELF_BITS
            page = pages.get(number)
            if page is not None and position in page:
                del page[position]
                self._length -= 1
                if not page:
                    del pages[number]

    def take_apart(self) -> Iterator[int]:
        """Nobody has it any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self.pages, length_of)
        self._length = 0

    def _page(self, position: QueuePosition) -> dict[QueuePosition, _Said]:
        page = self.pages.get(position >> SHELF_BITS)
        if page is None:
            page = self.pages[position >> SHELF_BITS] = {}
        return page
