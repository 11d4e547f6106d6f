"""Faults: what a replica's core has raised. Its memory may be half done and is believed no more; it begins anew from its disk.

Law: a fault ends one set's part of one process, which is then as it would be had the process died: nothing that the input at
hand was to cause is done, nobody is told, and other sets go on. Behind each fault in a row the replica rests longer. A frame
that cannot be applied, and again cannot when all has been read anew, is damage of its disk (R10): it is never passed over.
"""

from lockstep.core.clock import Now
from lockstep.core.ids import DiskId, LogIndex
from lockstep.core.log_copy import CannotApply
from services.backup.core.backup_memory import FoundDamage

REST_MS, REST_MS_MAX = 500, 60_000
"""Behind the first fault, in which another broker may be promoted; twice as much behind each one that follows."""
FORGOTTEN_MS = 600_000
"""A fault that comes so long after the last one is the first again."""


class Faults:
    """Lives as long as its replica, which drives it."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        """What the last one was; "": there was none, or its rest is over."""
        self._in_a_row = 0
        self._found_ms = 0
        self._rests_until_ms = 0
        self._not_applied: tuple[DiskId, LogIndex] | None = None
        """The frame, by its first index, that could not be applied last, and the disk of who had it."""

    def found(self, error: Exception, disk: DiskId | None, now: Now) -> FoundDamage | None:
        """Count one. `disk`: the own one, None: not known. Answers what is wrong with it, if that is so."""
        now_ms = now.boottime_ms
        if now_ms - self._found_ms > FORGOTTEN_MS:
            self._in_a_row = 0
        self.count += 1
        self.last = str(error) if isinstance(error, CannotApply) else repr(error)
        self._rests_until_ms = now_ms + min(REST_MS << min(self._in_a_row, 16), REST_MS_MAX)
        self._found_ms, self._in_a_row = now_ms, self._in_a_row + 1
        if not isinstance(error, CannotApply) or disk is None:
            return None
        before, self._not_applied = self._not_applied, (disk, error.first)
        return FoundDamage(disk, self.last, True, error.first) if before == self._not_applied else None

    def is_resting(self, now: Now) -> bool:
        """Whether it is too early to begin anew."""
        if self.last and now.boottime_ms >= self._rests_until_ms:
            self.last = ""
        return bool(self.last)
