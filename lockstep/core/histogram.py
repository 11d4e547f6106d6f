"""Histogram: how often a measured value lay in which range, and their sum.

Law: a value is counted once, in the lowest range whose bound is not below it; what was counted never goes back.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Lives as long as its owner, which alone adds to it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: ascending upper bounds, inclusive, in the unit of the values; above the last there is one range more."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)
