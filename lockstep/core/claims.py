"""Claims: who refers to the contents of a restored state, counted anew from its entries and operations.

Law: each content is claimed at least once before the end, and claims are of contents that are here. Of what is claimed once, by
something durable, as nearly everything is, nothing is kept.
"""

from collections.abc import Sequence

from lockstep.core.content_shelf import SHELF_BITS, Shelf
from lockstep.core.contents import Contents
from lockstep.core.ids import LogIndex, MessageId, index_of


class _Unclaimed:
    """What nobody has claimed yet on one shelf."""

    __slots__ = ("runs", "single")

    def __init__(self, shelf: Shelf) -> None:
        self.single = set(shelf.single)
        self.runs: dict[LogIndex, MessageId | set[MessageId]] = {
            index: MessageId(run.first) for index, run in shelf.runs.items()
        }
        """By record: all from this one on, as long as they are claimed in their order."""


class Claims:
    """Of one restoration. Contents that it found there are claimed already."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._fresh: set[MessageId] | None = set() if len(contents) else None
        """What was loaded and is not claimed yet; None: begun with nothing, all are fresh."""
        self._shelves: dict[int, _Unclaimed] = {}
        self._left = 0
        """Loaded and not claimed yet."""

    def loaded(self, ids: Sequence[MessageId]) -> None:
        """These have come."""
        self._left += len(ids)
        if self._fresh is not None:
            self._fresh.update(ids)

    def claim(self, ids: Sequence[MessageId], is_durable: bool) -> None:
        """One reference more to each of these."""
        if self._fresh is None and isinstance(ids, range) and self._claim_run(ids, is_durable):
            return
        for message_id in ids:
            self._claim(message_id, is_durable)

    def _claim_run(self, ids: range, is_durable: bool) -> bool:
        """The first claim on the next ones of a run, if that is what it is, and durable."""
        index, number = index_of(ids[0]), ids[0] >> SHELF_BITS
        run = self._contents.shelves[number].runs.get(index)
        if run is None or not is_durable:
            return False
        unclaimed = self._unclaimed_on(number).runs
        begin = unclaimed.get(index)
        if begin is None or isinstance(begin, set) or not run.has_next(begin, ids):
            return False
        self._left -= len(ids)
        if ids[-1] + 1 < run.first + run.count:
            unclaimed[index] = MessageId(ids[-1] + 1)
        else:
            del unclaimed[index]
        return True

    def _claim(self, message_id: MessageId, is_durable: bool) -> None:
        had = (0, 0) if self._take_first(message_id) else self._contents.references(message_id)
        self._contents.refer(message_id, had[0] + is_durable, had[1] + (not is_durable))

    def _take_first(self, message_id: MessageId) -> bool:
        """Whether nobody has claimed this one before."""
        if self._fresh is not None:
            unclaimed = self._fresh
        else:
            of_shelf = self._unclaimed_on(message_id >> SHELF_BITS)
            unclaimed = of_shelf.single
            if message_id not in unclaimed and of_shelf.runs:
                unclaimed = self._of_run(of_shelf, message_id)
        if message_id not in unclaimed:
            assert message_id in self._contents, f"message {message_id} is referred to and not there"
            return False
        unclaimed.remove(message_id)
        self._left -= 1
        return True

    def _of_run(self, of_shelf: _Unclaimed, message_id: MessageId) -> set[MessageId]:
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

    def _unclaimed_on(self, number: int) -> _Unclaimed:
        found = self._shelves.get(number)
        if found is None:
            found = self._shelves[number] = _Unclaimed(self._contents.shelves[number])
        return found

    def end(self) -> None:
        """Everything was claimed by whoever refers to it."""
        assert not self._left, f"{self._left} contents without a reference"
