"""Reign watch: how long a resource set was without a primary, as the replica that serves next can tell.

Law: the time begins with the last word of the previous primary that was heard here, or with this replica where none was; it ends
with the first look at which the new epoch serves. A set's first epoch follows nobody and is not counted.
"""

from lockstep.core.clock import Now
from lockstep.core.histogram import Histogram
from lockstep.core.ids import Epoch

FAILOVER_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""A role that is handed over takes tenths of a second; a dead machine its lease and an election."""


class ReignWatch:
    """Lives as long as its replica, which drives it."""

    def __init__(self) -> None:
        self.failover_seconds = Histogram(FAILOVER_SECONDS)
        self._led_ms = 0
        """CLOCK_BOOTTIME, when the set was last known to have a primary; 0: nothing was looked at yet."""
        self._served: Epoch | None = None
        """The own epoch that was counted."""

    def heard(self, now: Now) -> None:
        """A word of another primary."""
        self._led_ms = now.boottime_ms

    def look(self, epoch: Epoch | None, now: Now) -> None:
        """With every tick. `epoch`: the own one that is served, None without one."""
        if epoch is None:
            self._led_ms = self._led_ms or now.boottime_ms
            return
        if epoch != self._served:
            self._served = epoch
            if epoch > 1 and self._led_ms:
                self.failover_seconds.observe((now.boottime_ms - self._led_ms) / 1000)
        self._led_ms = now.boottime_ms
