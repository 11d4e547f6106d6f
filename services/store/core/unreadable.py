"""Which failures of a read are damage (DESIGN R10): bytes that are wrong at once; bytes that do not come when that goes on; what
is whole and no good when it is so again, all of it read anew.

Law: one that fails for a moment condemns no disk, however often it is tried in that moment: what counts is the ticks in which
something could not be read, or used. A step that writes or makes durable is no read, whatever becomes of it.
"""

from collections import Counter

from services.store.core.disk import DiskError, DiskProblem, ReadMeta, ReadSegment, Unusable
from services.store.core.limits import StoreLimits


class Unreadable:
    """Of one set; lives as long as it, which asks of every failure that it meets, and tells of every tick."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._ticks: Counter[str] = Counter()
        """In which something could not be read, by its name."""
        self._now: set[str] = set()
        """The same of this tick."""
        self._ticks_since = 0
        """The last one in which anything could not be read."""

    def damage_in(self, error: DiskError) -> str:
        """What is wrong on the disk for good, in words; "": nothing, or it may be otherwise at the next try."""
        if isinstance(error, Unusable):
            name = f"what is from {error.first} on" if error.first else "what the snapshot is of"
            return error.message if self._ticks_before(name) >= self._limits.unusable_ticks else ""
        if error.problem is DiskProblem.CORRUPT:
            return error.message
        if error.problem is not DiskProblem.UNREADABLE:
            return ""
        match error.step:
            case ReadSegment(number):
                name = f"segment {number}"
            case ReadMeta():
                name = "the meta file"
            case _:
                name = "the snapshot"
        return f"{name} cannot be read" if self._ticks_before(name) >= self._limits.unreadable_ticks else ""

    def _ticks_before(self, name: str) -> int:
        """In how many before this one that failed; from the next one on, this one is among them."""
        self._now.add(name)
        return self._ticks[name]

    def tick(self) -> None:
        self._ticks_since = 0 if self._now else self._ticks_since + 1
        if self._ticks_since >= self._limits.unreadable_forgotten_ticks:
            self._ticks.clear()
        self._ticks.update(self._now)
        self._now.clear()

    def forget(self) -> None:
        """Something else is in the place of all that was here."""
        self._ticks.clear()
        self._now.clear()
