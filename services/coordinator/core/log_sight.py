"""Since when this process has had the log in sight: what was decided since then, it would know to be lost.

Law: an etcd that was set back is found by its revision, as long as that has not passed what was seen of it; so nobody who had
nothing of it for long can know (DESIGN R1). What was begun before that, another coordinator may have decided, in what is lost.
"""

from lockstep.core.branch_names import GlobalId, begun_ms
from lockstep.core.clock import Now
from services.coordinator.core.settings import CoordinatorLimits


class LogSight:
    """Lives as long as the core. It has the log in sight from its first input on."""

    def __init__(self, limits: CoordinatorLimits) -> None:
        self._limits = limits
        self._seen_ms: int | None = None
        """CLOCK_BOOTTIME: when etcd was asked what it has answered last; None: nothing was handled yet."""
        self._since_ms = 0
        self._since_wall_ms = 0
        """Whatever was begun later by any wall clock, was begun since then, as the own one had it."""
        self._is_back = False
        """It was lost before that, in this life."""

    def begin(self, now: Now) -> None:
        """With the first input."""
        if self._seen_ms is None:
            self._seen_ms = now.boottime_ms
            self._restart(now)

    def seen(self, asked_ms: int, now: Now) -> None:
        """etcd has answered what it was asked at `asked_ms`, and was not behind what was seen of it."""
        if self._is_lost(now):
            self._restart(now)
            self._is_back = True
        self._seen_ms = asked_ms

    def covers(self, global_id: GlobalId, opened_ms: int | None, now: Now) -> bool:
        """Whether that transaction was begun since then. `opened_ms`: CLOCK_BOOTTIME of when it was first heard of here, while it
        was open; None: it was not.
        """
        if self._is_lost(now):
            return False
        if opened_ms is not None and opened_ms >= self._since_ms:
            return True
        # The own clock may have been set since: what lies behind that moment by it as it was then, and by it as it is now.
        since_wall_ms = now.wall_ms - (now.boottime_ms - self._since_ms) + self._limits.clock_ms
        # A name of a later time than now is of a clock that is wrong, and says nothing.
        latest_wall_ms = now.wall_ms + self._limits.clock_ms
        return max(self._since_wall_ms, since_wall_ms) < begun_ms(global_id) <= latest_wall_ms

    def was_lost_before(self, now: Now) -> bool:
        """Whether what it does not cover may have been begun in this life: so may what a client asked then, and nobody heard."""
        return self._is_back or self._is_lost(now)

    def _is_lost(self, now: Now) -> bool:
        assert self._seen_ms is not None, "something is being handled"
        return now.boottime_ms - self._seen_ms > self._limits.unasked_ms

    def _restart(self, now: Now) -> None:
        self._since_ms, self._since_wall_ms = now.boottime_ms, now.wall_ms + self._limits.clock_ms
