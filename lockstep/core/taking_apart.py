"""Letting go: what is big and nobody has any more is taken apart in pieces, in place of being freed in one go.

Law: a million objects that are freed by one reference take a fifth of a second, in which nothing else of the process runs, on
whatever thread that is. So whoever drops something that big has it emptied first, from its leaves on (`TakeApart`), in steps that
say what they cost as those of `Pieces` do; what is left then is little. What is being let go of is good for nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

TAKEN_OUT_IN_ONE = 500
"""Objects, in one step, and those of what is taken out last: a tenth to two tenths of a microsecond each."""
_COST_SHIFT = 13
"""Bytes that cost as much: their pages go back, a tenth of a microsecond for each KiB."""


def emptied(
    held: dict[Any, Any] | list[Any] | set[Any] | deque[Any], cost: Callable[[Any], int] | None = None
) -> Iterator[int]:
    """Take out everything. `cost`: of one thing that is taken out, of a `dict` the pair; None: 1 of each."""
    take: Callable[[], Any] = held.popitem if isinstance(held, dict) else held.pop
    taken = 0
    while held:
        if cost is None:
            take()
            taken += 1
        else:
            taken += cost(take())
        if taken >= TAKEN_OUT_IN_ONE:
            yield taken
            taken = 0
    if taken:
        yield taken


def cost_of_bytes(size: int) -> int:
    """Of one thing of so many bytes, and itself."""
    return 1 + (size >> _COST_SHIFT)


def length_of(pair: tuple[Any, Any]) -> int:
    """The cost of what a `dict` has under a key, if that is a container: as much as is in it, and itself."""
    return len(pair[1]) + 1
