"""Numbers of messages, or of entries of one queue, that changed since the snapshot was last written.

Law: what is told as a range came together or went together; what is told alone came, went or changed. Numbers are never given
twice: what is behind the last write is new, and stays new until it is written.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple

from lockstep.core.ids import ORDINAL_BITS, LogIndex
from lockstep.core.taking_apart import emptied
from services.store.core.block_places import Number


class Changed(NamedTuple, Generic[Number]):
    """What there is to be written."""

    new: list[Sequence[Number]]
    """Ascending, each once; some may be gone again."""
    gone: list[Sequence[Number]]
    """Were there at the last write, and are gone."""
    others: list[Number]
    """Were there at the last write; changed or gone. Ascending."""


class ChangedNumbers(Generic[Number]):
    """Lives until it is taken."""

    __slots__ = ("_alone", "_ranges")

    def __init__(self) -> None:
        self._alone: dict[Number, None] = {}
        self._ranges: list[Sequence[Number]] = []

    def __len__(self) -> int:
        return len(self._alone) + sum(map(len, self._ranges))

    def add(self, numbers: Sequence[Number]) -> None:
        if type(numbers) is range:
            self._ranges.append(numbers)  # type: ignore[arg-type]
        else:
            self._alone.update(dict.fromkeys(numbers))

    def take(self, written: LogIndex) -> Changed[Number]:
        """All of it; `written`: the last index that the snapshot covers."""
        first_new = (written + 1) << ORDINAL_BITS
        new: list[Sequence[Number]] = []
        gone: list[Sequence[Number]] = []
        for numbers in sorted(self._ranges, key=_begin_and_length):
            if numbers[0] < first_new:
                gone.append(numbers)
            elif not new or numbers[0] > new[-1][-1]:
                new.append(numbers)
            # Else it went again, from what came since the last write.
        alone = sorted(self._alone)
        behind = bisect_left(alone, first_new)
        ranges = tuple(new)
        for number in alone[behind:]:
            place = bisect_right(ranges, number, key=itemgetter(0))
            if not place or number > ranges[place - 1][-1]:
                new.append((number,))
        new.sort(key=_begin_and_length)
        self._alone, self._ranges = {}, []
        return Changed(new, gone, alone[:behind])

    def take_apart(self) -> Iterator[int]:
        """Nobody takes it any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._alone)
        yield from emptied(self._ranges)


def _begin_and_length(numbers: Sequence[int]) -> tuple[int, int]:
    return numbers[0], -len(numbers)
