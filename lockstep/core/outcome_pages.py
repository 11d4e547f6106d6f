"""Outcome pages: how transactions ended, on pages by where they began, in the order in which they ended.

Law: a page is small, however many outcomes there are, so that no step makes room for all of them anew, and a snapshot copies a
page at a time. What is on a page changes by records that come and by forgetting from the front alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from lockstep.core.captures import Captures
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.taking_apart import emptied, length_of

if TYPE_CHECKING:
    from lockstep.core.outcomes import Outcome

PAGE_BITS = 12
"""A page is for transactions that began within 4096 indexes."""
Page = dict[TransactionKey, "Outcome"]


def page_of(key: TransactionKey) -> int:
    """The number of its page."""
    return key[0] >> PAGE_BITS


class OutcomePages:
    """Lives as long as the outcomes of one state, which alone change it."""

    __slots__ = ("_captures", "_order", "pages")

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._order: deque[TransactionKey] = deque()
        """By the records that ended them."""
        self.pages: dict[int, Page] = {}
        """By number; none is empty."""

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: TransactionKey) -> bool:
        page = self.pages.get(key[0] >> PAGE_BITS)
        return page is not None and key in page

    def get(self, key: TransactionKey) -> Outcome | None:
        page = self.pages.get(key[0] >> PAGE_BITS)
        return page.get(key) if page is not None else None

    def add(self, key: TransactionKey, outcome: Outcome) -> None:
        """One behind all others, of a transaction that has none here."""
        page = self.pages.get(key[0] >> PAGE_BITS)
        if page is None:
            page = self.pages[key[0] >> PAGE_BITS] = {}
        assert key not in page, f"transaction {key} ended twice"
        page[key] = outcome
        self._order.append(key)

    def first(self, count_max: int | None = None) -> Iterator[Outcome]:
        """Those that ended first, in this order; without a number all of them."""
        return (self.pages[key[0] >> PAGE_BITS][key] for key in islice(self._order, count_max))

    def first_items(self) -> Iterator[tuple[TransactionKey, Outcome]]:
        """As `first`, with their keys."""
        return ((key, self.pages[key[0] >> PAGE_BITS][key]) for key in self._order)

    def items(self) -> Iterator[tuple[TransactionKey, Outcome]]:
        """All of them, in no order."""
        for page in self.pages.values():
            yield from page.items()

    def forget(self, floor: LogIndex) -> Iterator[tuple[TransactionKey, Outcome]]:
        """Those that ended at or below `floor`, each gone when it is given."""
        order, pages = self._order, self.pages
        while order:
            key = order[0]
            number = key[0] >> PAGE_BITS
            page = pages[number]
            outcome = page[key]
            if outcome.index > floor:
                return
            if self._captures.of_outcomes:
                self._captures.page_changes(number, page)
            order.popleft()
            del page[key]
            if not page:
                del pages[number]
            yield key, outcome

    def take_apart(self) -> Iterator[int]:
        """As `Outcomes.take_apart`."""
        yield from emptied(self.pages, length_of)
        yield from emptied(self._order)


class CapturedOutcomes:
    """The pages as they were when this was made, read one by one while the state goes on. Lives as long as somebody reads it."""

    __slots__ = ("__weakref__", "_end", "_numbers", "_pages", "_place", "_saved")

    def __init__(self, pages: OutcomePages, captures: Captures, applied: LogIndex) -> None:
        """`applied`: by the state; what ends behind it came later."""
        self._pages = pages.pages
        self._end = applied
        self._numbers = sorted(self._pages)
        self._place = 0
        """Of the next page in `_numbers`."""
        self._saved: dict[int, Page] = {}
        captures.add_to_outcomes(self)

    @property
    def number(self) -> int | None:
        """Of the next page; None: all were read."""
        return self._numbers[self._place] if self._place < len(self._numbers) else None

    def next(self) -> list[tuple[TransactionKey, Outcome]]:
        """What the next page has, by key."""
        number = self._numbers[self._place]
        self._place += 1
        page = self._saved.pop(number) if number in self._saved else self._pages[number]
        return sorted(pair for pair in page.items() if pair[1].index <= self._end)

    def page_changes(self, number: int, page: Page) -> None:
        # One that was not there when this was made has nothing of that moment.
        is_ahead = self._place < len(self._numbers) and self._numbers[self._place] <= number
        if is_ahead and number not in self._saved:
            self._saved[number] = dict(page)

    def finish(self) -> None:
        for number in self._numbers[self._place :]:
            if number not in self._saved:
                self._saved[number] = dict(self._pages[number])
