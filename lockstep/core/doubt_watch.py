"""Doubt watch: what has been in doubt for longer than an operator should leave it, and when to say so again.

Law: everything in doubt is warned of when it passes the threshold, and then each time that its age has doubled; so what stays for
a week is in the log a dozen times, not a million. A burst is spread over several looks, the oldest first; nothing is left out.
Ages are of the wall clock: they decide when somebody looks, never what becomes of anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar


class _Sortable(Protocol):
    def __lt__(self, other: Self, /) -> bool: ...
    def __hash__(self) -> int: ...


Key = TypeVar("Key", bound=_Sortable)


@dataclass(frozen=True, slots=True)
class DoubtFigures:
    """For metrics, as of the last look."""

    count: int
    oldest_seconds: float
    """0: there is none."""
    overdue: int
    """Beyond the threshold."""


class DoubtWatch(Generic[Key]):
    """Lives as long as the core that looks; a new one warns again of what it finds."""

    def __init__(self, threshold_ms: int, warnings_max: int) -> None:
        """`warnings_max`: in one look."""
        self._threshold_ms = threshold_ms
        self._warnings_max = warnings_max
        self._since_ms: dict[Key, int] = {}
        self._warn_at_age_ms: dict[Key, int] = {}
        """Of those that were warned of."""

    def look(self, since_ms: Mapping[Key, int], wall_ms: int) -> list[Key]:
        """All that is in doubt now, each since when by the wall clock; returns those to warn of, the oldest first."""
        self._since_ms = dict(since_ms)
        self._warn_at_age_ms = {key: age for key, age in self._warn_at_age_ms.items() if key in since_ms}
        late = sorted(
            (since, key)
            for key, since in since_ms.items()
            if wall_ms - since >= self._warn_at_age_ms.get(key, self._threshold_ms)
        )[: self._warnings_max]
        for since, key in late:
            self._warn_at_age_ms[key] = 2 * max(wall_ms - since, 1)
        return [key for _, key in late]

    def figures(self, wall_ms: int) -> DoubtFigures:
        ages = [max(0, wall_ms - since) for since in self._since_ms.values()]
        overdue = sum(age >= self._threshold_ms for age in ages)
        return DoubtFigures(len(ages), max(ages, default=0) / 1000, overdue)
