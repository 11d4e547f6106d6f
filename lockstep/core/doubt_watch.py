"""Doubt watch: what has been in doubt for longer than an operator should leave it, and when to say so again.

Law: everything in doubt is warned of when it passes the threshold, and then each time that its age has doubled; so what stays for
a week is in the log a dozen times, not a million. A burst is spread over several looks, those first that have been due for
longest; nothing is left out. Ages are of the wall clock: they decide when somebody looks, never what becomes of anything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from lockstep.core.due_times import DueTimes, Key

LOOKED_AT_IN_ONE = 500
"""In one step of a look at all."""


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
        self._warnings_due: DueTimes[Key] = DueTimes()
        """By the wall clock."""

    def begun(self, key: Key, since_ms: int) -> None:
        """It is in doubt, since then by the wall clock."""
        self._since_ms[key] = since_ms
        self._warnings_due.set(key, since_ms + self._warn_at_age_ms.get(key, self._threshold_ms))

    def over(self, key: Key) -> None:
        """It is not in doubt any more; nothing if it was not."""
        if self._since_ms.pop(key, None) is not None:
            self._warn_at_age_ms.pop(key, None)
            self._warnings_due.drop(key)

    def late(self, wall_ms: int) -> list[Key]:
        """Those to warn of now. Looks at no others."""
        late = self._warnings_due.take(wall_ms, self._warnings_max)
        for key in late:
            since_ms = self._since_ms[key]
            self._warn_at_age_ms[key] = 2 * max(wall_ms - since_ms, 1)
            self._warnings_due.set(key, since_ms + self._warn_at_age_ms[key])
        return late

    def look(self, since_ms: Mapping[Key, int]) -> Iterator[int]:
        """For who does not hear what begins and ends: `since_ms` is all that is in doubt now. In steps that say what they cost
        (`Pieces`), between which nobody else says anything.
        """
        cost = 0
        for known in (tuple(self._since_ms), tuple(since_ms)):
            for key in known:
                since = since_ms.get(key)
                if since is None:
                    self.over(key)
                elif self._since_ms.get(key) != since:
                    self.begun(key, since)
                    cost += 1
                cost += 1
                if cost >= LOOKED_AT_IN_ONE:
                    yield cost
                    cost = 0
        yield cost

    def figures(self, wall_ms: int) -> DoubtFigures:
        ages = [max(0, wall_ms - since) for since in self._since_ms.values()]
        overdue = sum(age >= self._threshold_ms for age in ages)
        return DoubtFigures(len(ages), max(ages, default=0) / 1000, overdue)
