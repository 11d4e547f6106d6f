"""Queue entries: whose places there are in one queue, in their order, on pages.

Law: an entry is on the page that its position belongs to, and a page stays small, however long the queue is: no step makes room
for all entries anew, or clears away what is gone of all of them. Pages are in order, and none but a lone one is empty.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import lt

from lockstep.core.entry_pages import SLACK, Element, EntryPage, Pairs, Piece, first_of, last_of
from lockstep.core.entry_runs import EntryRun
from lockstep.core.ids import LogIndex, MessageId, QueuePosition, index_of
from lockstep.core.ids import place as position_at
from lockstep.core.packed_messages import RUN_MIN
from lockstep.core.taking_apart import emptied


class QueueEntries:
    """The part of a `Queue` that has its entries; only the queue changes it."""

    __slots__ = ("_firsts", "_page_entries", "_pages")

    def __init__(self, page_entries: int) -> None:
        """`page_entries`: of a page that is full (`PAGE_ENTRIES`)."""
        self._page_entries = page_entries
        self._pages = [EntryPage(0)]
        self._firsts = [0]
        """Of each page."""

    # --- asking ---

    def __contains__(self, position: QueuePosition) -> bool:
        pages = self._pages
        page = pages[0] if len(pages) == 1 else pages[self._number_of(position)]
        return position in page.single or page.runs.find(position) is not None

    def message_id(self, position: QueuePosition) -> MessageId | None:
        """Whose place this is; None if there is no entry."""
        pages = self._pages
        page = pages[0] if len(pages) == 1 else pages[self._number_of(position)]
        message_id = page.single.get(position)
        if message_id is None:
            run = page.runs.find(position)
            return MessageId(position + run.shift) if run is not None else None
        return message_id

    def message_ids(self, positions: Sequence[QueuePosition]) -> list[MessageId]:
        """The same of all these positions, which are there."""
        return [message_id for _, ids in self.pieces(positions) for message_id in ids]

    def present(self, positions: Iterable[QueuePosition]) -> list[QueuePosition]:
        """Those of these positions that are there, in their order."""
        pages = self._pages
        if len(pages) == 1 and not pages[0].runs.by_index:
            single = pages[0].single
            return [position for position in positions if position in single]
        by_page = self._by_page(tuple(positions))
        return [position for page, some in by_page for _, piece in page.pieces(some) for position in piece]

    def head(self) -> QueuePosition | None:
        """The first position, None if the queue is empty. O(1) amortised."""
        page = self._pages[0]
        page.skip_gone()
        return QueuePosition(first_of(page.order[page.start])) if page.start < len(page.order) else None

    def positions(self, start: int = 0, limit: int | None = None) -> list[QueuePosition]:
        """Positions from `start` on, ascending, at most `limit`; locked ones included. A copy: the queue may change after."""
        pages = self._pages
        pages[0].skip_gone()  # So that nobody walks over it again.
        found: list[QueuePosition] = []
        number, last = (0, 0) if len(pages) == 1 else (self._number_of(start), len(pages) - 1)
        pages[number].positions(start, limit, found)
        while number < last and (limit is None or len(found) < limit):
            number += 1
            pages[number].positions(start, limit, found)
        return found

    def pieces(self, positions: Sequence[QueuePosition]) -> Iterator[Piece]:
        """Those of these positions that are there, in their order."""
        for page, some in self._by_page(positions):
            for run, piece in page.pieces(some):
                yield piece, page.ids(run, piece)

    def items(self) -> Iterator[tuple[QueuePosition, MessageId]]:
        """All entries in the order of their positions."""
        for page in self._pages:
            for positions, ids in page.pieces_of(page.order[page.start :]):
                yield from zip(positions, ids, strict=True)

    def pieces_from(
        self, index: LogIndex, cost_max: int, is_each_looked_at: bool = False
    ) -> tuple[list[Piece], LogIndex | None]:
        """Entries that records from `index` on made visible, all of each record: about `cost_max` of those that are kept one by
        one, or runs of others, unless `is_each_looked_at`. And from which record on there are more; None: that was all.
        """
        pieces: list[Piece] = []
        cost, following = 0, index
        for page in self._pages_from(position_at(index, 0)):
            order = page.order
            begin = end = max(page.start, bisect_left(order, position_at(index, 0)))
            while end < len(order) and cost < cost_max:
                cost += _cost(order[end], is_each_looked_at)
                end += 1
            if end > begin:
                following = LogIndex(index_of(last_of(order[end - 1])) + 1)
            if cost >= cost_max:
                end = bisect_left(order, position_at(following, 0), end)
                pieces += page.pieces_of(order[begin:end])
                if end < len(order):
                    return pieces, following
            else:
                pieces += page.pieces_of(order[begin:end])
        return pieces, None

    def pieces_of(self, index: LogIndex) -> list[Piece]:
        """All entries that one record made visible."""
        first, last = position_at(index, 0), position_at(index + 1, 0)
        pieces: list[Piece] = []
        for page in self._pages_from(first):
            begin = bisect_left(page.order, first, page.start)
            end = bisect_left(page.order, last, begin)
            pieces += page.pieces_of(page.order[begin:end])
            if end < len(page.order):
                break
        return pieces

    def _number_of(self, position: int) -> int:
        """Of the page that a position belongs to."""
        return max(0, bisect_right(self._firsts, position) - 1) if len(self._pages) > 1 else 0

    def _pages_from(self, position: int) -> Iterator[EntryPage]:
        """The page that a position belongs to, and those behind it."""
        pages = self._pages
        return (pages[number] for number in range(self._number_of(position), len(pages)))

    def _by_page(
        self, positions: Sequence[QueuePosition]
    ) -> Sequence[tuple[EntryPage, Sequence[QueuePosition]]]:
        """Positions in their order, by the pages that they belong to; pages may go while this is gone through."""
        pages = self._pages
        if len(pages) == 1:
            return ((pages[0], positions),)
        if not positions:
            return ()
        number = self._number_of(positions[0])
        if number == self._number_of(min(positions)) == self._number_of(max(positions)):
            return ((pages[number], positions),)
        if all(map(lt, positions, islice(positions, 1, None))):
            return self._ascending_by_page(positions)
        return [(pages[number], tuple(some)) for number, some in groupby(positions, self._number_of)]

    def _ascending_by_page(
        self, positions: Sequence[QueuePosition]
    ) -> list[tuple[EntryPage, Sequence[QueuePosition]]]:
        """The same of positions that ascend, as they nearly always do: nothing is looked up for each."""
        pages, firsts = self._pages, self._firsts
        found: list[tuple[EntryPage, Sequence[QueuePosition]]] = []
        begin = 0
        while begin < len(positions):
            number = self._number_of(positions[begin])
            is_last = number + 1 == len(firsts)
            end = len(positions) if is_last else bisect_left(positions, firsts[number + 1], begin)
            found.append((pages[number], positions[begin:end]))
            begin = end
        return found

    # --- changing ---

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave no entry, in steps that say what they cost (`taking_apart`)."""
        pages, self._pages, self._firsts = self._pages, [EntryPage(0)], [0]
        yield from emptied(pages, lambda page: len(page.order) + 1)

    def _put(self, positions: Sequence[QueuePosition], ids: Sequence[MessageId], size: int) -> None:
        """Add entries behind all others. `size`: bytes of all of them."""
        page, count = self._pages[-1], self._page_entries
        order = page.order
        if len(order) >= count:
            page = self._begin_page(positions[0])
            order = page.order
        if len(positions) >= RUN_MIN and type(positions) is range and type(ids) is range:
            run = EntryRun(positions, ids.start - positions.start, size)
            page.runs.add(run)
            order.append(run)
            return
        alone = list(positions)  # The same number objects serve for both: there may be millions.
        if len(alone) <= count:
            page.single.update(zip(alone, ids, strict=True))
            order.extend(alone)
            return
        for begin in range(0, len(alone), count):
            some = alone[begin : begin + count]
            if begin:
                page = self._begin_page(some[0])
            page.single.update(zip(some, ids[begin : begin + count], strict=True))
            page.order.extend(some)

    def _begin_page(self, first: int) -> EntryPage:
        page = EntryPage(first)
        self._pages.append(page)
        self._firsts.append(first)
        return page

    def _put_between(self, part: Pairs | EntryRun) -> None:
        """Add entries, or a run, in whatever place their positions belong."""
        order = self._pages[-1].order
        first = part.first if isinstance(part, EntryRun) else part[0][0]
        is_last = not order or last_of(order[-1]) < first
        if is_last and len(order) >= self._page_entries:
            self._begin_page(first)
        if is_last or isinstance(part, EntryRun):
            self._insert(self._number_of(first), part)
            return
        by_page = [
            (number, tuple(some)) for number, some in groupby(part, lambda pair: self._number_of(pair[0]))
        ]
        for number, some in reversed(by_page):
            self._insert(number, some)

    def _insert(self, number: int, part: Pairs | EntryRun) -> None:
        page = self._pages[number]
        page.insert(part)
        if len(page.order) > 2 * self._page_entries:
            behind = page.split()
            if page.is_empty:
                # All that is left of it lies behind what is gone.
                behind.first, self._pages[number] = page.first, behind
            elif not behind.is_empty:
                self._pages.insert(number + 1, behind)
                self._firsts.insert(number + 1, behind.first)

    def _trim(self, page: EntryPage) -> None:
        """Some entries of a page have been taken out."""
        left = len(page.single) + len(page.runs.by_index)
        if left:
            if len(page.order) > 2 * left + SLACK:
                page.trim(2 * left + SLACK)
        elif len(self._pages) == 1:
            page.clear()
            page.first = self._firsts[0] = 0
        else:
            number = bisect_left(self._firsts, page.first)
            if number < len(self._pages) and self._pages[number] is page:
                del self._pages[number], self._firsts[number]


def _cost(element: Element, is_each_looked_at: bool) -> int:
    """Of its pieces: a run is one, unless some of it are gone, or each is looked at."""
    if isinstance(element, EntryRun) and (is_each_looked_at or element.has_gaps):
        return element.left + 1
    return 1
