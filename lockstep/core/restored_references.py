"""Restored references: who refers to the contents of a restored state, counted anew from its entries and operations.

Law: each content is referred to at least once before the end, and only contents that are here are. Of those that one durable
thing refers to, as of nearly all, nothing is kept.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.content_shelf import SHELF_BITS, Shelf
from lockstep.core.contents import Contents
from lockstep.core.ids import MessageId, index_of
from lockstep.core.taking_apart import emptied

_TABLE_COST = 10
"""Of what a shelf has, however little is left of that."""


class _Uncounted:
    """To what nobody refers yet on one shelf."""

    __slots__ = ("runs", "single")

    def __init__(self, shelf: Shelf) -> None:
        self.single = set(shelf.single)
        self.runs: dict[int, MessageId | set[MessageId]] = {
            index: MessageId(run.first) for index, run in shelf.runs.items()
        }
        """By record: all from this one on, as long as they are counted in their order."""


class RestoredReferences:
    """Of one restoration. Contents that it found there are counted already."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._fresh: set[MessageId] | None = set() if len(contents) else None
        """What was loaded, and to which nobody refers yet; None: begun with nothing, all are fresh."""
        self._shelves: dict[int, _Uncounted] = {}
        self._left = 0
        """Loaded, and nobody refers to them yet."""

    def loaded(self, ids: Sequence[MessageId]) -> None:
        """These have come."""
        self._left += len(ids)
        if self._fresh is not None:
            self._fresh.update(ids)

    def count(self, ids: Sequence[MessageId], is_durable: bool) -> None:
        """One reference more to each of these."""
        if self._fresh is None and isinstance(ids, range) and self._count_run(ids, is_durable):
            return
        for message_id in ids:
            self._count_one(message_id, is_durable)

    def _count_run(self, ids: range, is_durable: bool) -> bool:
        """The first reference to each of the next ones of a run, if that is what it is, and durable."""
        index, number = index_of(ids[0]), ids[0] >> SHELF_BITS
        run = self._contents.shelves[number].runs.get(index)
        if run is None or not is_durable:
            return False
        uncounted = self._uncounted_on(number).runs
        begin = uncounted.get(index)
        if begin is None or isinstance(begin, set) or not run.has_next(begin, ids):
            return False
        self._left -= len(ids)
        if ids[-1] + 1 < run.first + run.count:
            uncounted[index] = MessageId(ids[-1] + 1)
        else:
            del uncounted[index]
        return True

    def _count_one(self, message_id: MessageId, is_durable: bool) -> None:
        had = (0, 0) if self._take_first(message_id) else self._contents.references(message_id)
        self._contents.refer(message_id, had[0] + is_durable, had[1] + (not is_durable))

    def _take_first(self, message_id: MessageId) -> bool:
        """Whether nobody referred to this one before."""
        if self._fresh is not None:
            uncounted = self._fresh
        else:
            of_shelf = self._uncounted_on(message_id >> SHELF_BITS)
            uncounted = of_shelf.single
            if message_id not in uncounted and of_shelf.runs:
                uncounted = self._of_run(of_shelf, message_id)
        if message_id not in uncounted:
            assert message_id in self._contents, f"message {message_id} is referred to and not there"
            return False
        uncounted.remove(message_id)
        self._left -= 1
        return True

    def _of_run(self, of_shelf: _Uncounted, message_id: MessageId) -> set[MessageId]:
        index = index_of(message_id)
        found = of_shelf.runs.get(index)
        if found is None:
            return set()
        if not isinstance(found, set):
            begin, run = found, self._contents.shelves[message_id >> SHELF_BITS].runs[index]
            there = enumerate(run.looked_at()[begin - run.first :], begin)
            found = {MessageId(number) for number, content in there if content is not None}
            of_shelf.runs[index] = found
        return found

    def _uncounted_on(self, number: int) -> _Uncounted:
        found = self._shelves.get(number)
        if found is None:
            found = self._shelves[number] = _Uncounted(self._contents.shelves[number])
        return found

    def take_apart(self) -> Iterator[int]:
        """It is done with, or void: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._shelves, lambda pair: len(pair[1].single) + len(pair[1].runs) + _TABLE_COST)
        yield from emptied(self._fresh or [])

    def end(self) -> None:
        """Everything that refers to contents was counted."""
        assert not self._left, f"{self._left} contents without a reference"
