"""Which numbers are in which block of a snapshot, and which of them are gone.

Law: blocks do not interleave: one lies behind the other, and is named by its last number. A number that is in none has an item
of its own.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from lockstep.core.ids import MessageId, QueuePosition
from lockstep.core.taking_apart import emptied

Number = TypeVar("Number", MessageId, QueuePosition)


class KeptBlock(Generic[Number]):
    """One block, from its writing until nothing is left of it."""

    __slots__ = ("count", "gone", "runs")

    def __init__(self, runs: Sequence[Sequence[Number]], gone: set[Number] | None = None) -> None:
        self.runs: Sequence[Sequence[Number]] = runs
        """All that is in it, ascending."""
        self.count = sum(map(len, runs))
        """Of these."""
        self.gone: set[Number] = gone if gone is not None else set()

    @property
    def left(self) -> int:
        """How many are not gone."""
        return self.count - len(self.gone)

    def numbers(self) -> list[Number]:
        """All that is in it."""
        return [number for run in self.runs for number in run]

    def numbers_left(self) -> list[Number]:
        return [number for number in self.numbers() if number not in self.gone]

    def places_left(self) -> list[int]:
        return [place for place, number in enumerate(self.numbers()) if number not in self.gone]


class BlockPlaces(Generic[Number]):
    """The blocks of one kind, of entries of one queue."""

    __slots__ = ("_names", "blocks")

    def __init__(self) -> None:
        self._names: list[Number] = []
        """Ascending."""
        self.blocks: dict[Number, KeptBlock[Number]] = {}

    def add(self, name: Number, block: KeptBlock[Number]) -> None:
        """One behind all others."""
        is_behind = not self._names or self._names[-1] < block.runs[0][0]
        assert is_behind, f"block {name} is not behind all others"
        self._names.append(name)
        self.blocks[name] = block

    def remove(self, name: Number) -> None:
        del self._names[bisect_left(self._names, name)]
        del self.blocks[name]

    def take_apart(self) -> Iterator[int]:
        """Nobody wants to know any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._names)
        yield from emptied(self.blocks, lambda pair: len(pair[1].runs) + len(pair[1].gone) + 1)

    def pieces(self, numbers: Sequence[Number]) -> Iterator[tuple[Number | None, Sequence[Number]]]:
        """Numbers, ascending, by their block's name; None: those that have items of their own."""
        place, names = 0, self._names
        while place < len(numbers):
            place_of_name = bisect_left(names, numbers[place])
            name = names[place_of_name] if place_of_name < len(names) else None
            first = self.blocks[name].runs[0][0] if name is not None else None
            if name is not None and first is not None and first <= numbers[place]:
                behind = bisect_left(numbers, name + 1, place)
                yield name, numbers[place:behind]
            else:
                behind = bisect_left(numbers, first, place) if first is not None else len(numbers)
                yield None, numbers[place:behind]
            place = behind
