"""What the rounds of a run say of a median: the interval between two of its values that the true one lies in.

Law: no distribution is assumed. Below six rounds no two values include a median with 95 %: then there is no interval, and the
lowest and the highest are shown as what they are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Of one figure over the rounds of a run."""

    low: float
    high: float
    rounds: int
    is_interval: bool
    """With `CONFIDENCE` at least; False: the lowest and the highest of too few rounds."""

    def __str__(self) -> str:
        span = f"{self.low:.2f} to {self.high:.2f}"
        if self.rounds < 2:
            return "1 round"
        return span if self.is_interval else f"{span}, all of {self.rounds} rounds"


def interval(values: Sequence[float]) -> Interval | None:
    """Of the median of what these are drawn from; None without any."""
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    outside = 0
    below = 0.0
    # The median is below the k-th lowest as seldom as so many of `count` fair coins fall on one side.
    while 2 * (below + math.comb(count, outside) / 2**count) <= 1 - CONFIDENCE:
        below += math.comb(count, outside) / 2**count
        outside += 1
    place = max(outside - 1, 0)
    return Interval(ordered[place], ordered[count - 1 - place], count, outside > 0)
