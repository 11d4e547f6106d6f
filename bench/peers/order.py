"""The order of turns: a Latin square that is balanced for who precedes whom (Williams 1949).

Law: over all rows each system stands in each place equally often, and directly behind each other one equally often. Turning a
cyclic order changes who begins and never who precedes whom: whoever leaves work behind would leave it to the same one each time.
"""

from collections.abc import Sequence
from typing import TypeVar

_One = TypeVar("_One")


def rows(count: int) -> list[list[int]]:
    """Of the numbers below `count`: so many rows, twice as many for an odd `count` above one, where one square is not enough."""
    if count < 1:
        return []
    first = [0]
    for step in range(1, count):
        # 0, 1, n-1, 2, n-2, ...: all differences between neighbours are different.
        first.append((step + 1) // 2 if step % 2 else count - step // 2)
    square = [[(number + shift) % count for number in first] for shift in range(count)]
    if count % 2 and count > 1:
        square += [row[::-1] for row in square]
    return square


def ordered(systems: Sequence[_One], number: int) -> list[_One]:
    """These systems as row `number` has them; behind the last row comes the first."""
    found = rows(len(systems))
    return [systems[place] for place in found[number % len(found)]] if found else []
