"""Lockstep beside another system in one run: the ratio of messages a second in one case, round by round.

Law: a ratio is of two medians of one run, and of a system that was driven in several ways the best median counts. How far chance
goes is said by the rounds: each has a ratio of its own, of measurements that were made within minutes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.cases import Case
from bench.intervals import Interval, interval
from bench.own_cluster import NAME
from bench.results import Measurement, by_round, medians


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case; a side is None where it was not measured."""

    own: Measurement | None
    peer: Measurement | None
    by_round: tuple[float, ...] = ()
    """In the order of the rounds, of those in which both were measured."""

    @property
    def ratio(self) -> float:
        """0: not measured."""
        return _ratio(self.own, self.peer)

    @property
    def interval(self) -> Interval | None:
        return interval(self.by_round)

    @property
    def is_noisy(self) -> bool:
        return any(one is not None and one.is_noisy for one in (self.own, self.peer))

    @property
    def was_watched(self) -> bool:
        """Systems whose turn it was not were at rest, or are said to have worked."""
        return all(one is not None and one.system_cores for one in (self.own, self.peer))


def compared(measurements: Sequence[Measurement], case: Case, peer: str, path: str = "sdk") -> Comparison:
    """`path`: how clients reached Lockstep."""
    own = [one for one in measurements if (one.system, one.path, one.key) == (NAME, path, case.key)]
    others = [one for one in measurements if (one.system, one.key) == (peer, case.key)]
    best = _best(others)
    if best is not None:
        others = [one for one in others if one.path == best.path]
    mine, theirs = by_round(own), by_round(others)
    rounds = sorted(mine.keys() & theirs.keys())
    return Comparison(_best(own), best, tuple(_ratio(mine[one], theirs[one]) for one in rounds))


def _best(measurements: Iterable[Measurement]) -> Measurement | None:
    """Of the medians of several ways; the first of those that are as good."""
    return max(medians(list(measurements)), key=lambda one: one.messages_per_second, default=None)


def _ratio(own: Measurement | None, peer: Measurement | None) -> float:
    if own is None or peer is None or not peer.messages_per_second:
        return 0.0
    return own.messages_per_second / peer.messages_per_second
