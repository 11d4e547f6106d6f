"""A machine's clocks: CLOCK_BOOTTIME that runs a little too fast or too slow, and a wall clock that may jump (DESIGN R6)."""

from lockstep.core.clock import Now
from tests.simulation.loop import Loop


class Clocks:
    """Clocks of one machine. `rate_error` is the share by which its boottime is too fast (at most 1e-3 either way)."""

    __slots__ = ("_loop", "_offset_ms", "_rate", "wall_offset_ms")

    def __init__(self, loop: Loop, rate_error: float, boot_offset_ms: int, wall_offset_ms: int) -> None:
        self._loop = loop
        self._rate = (1.0 + rate_error) / 1000.0
        self._offset_ms = boot_offset_ms
        self.wall_offset_ms = wall_offset_ms

    def now(self) -> Now:
        boot = int(self._loop.now_us * self._rate) + self._offset_ms
        return Now(boot, 1_700_000_000_000 + self._loop.now_us // 1000 + self.wall_offset_ms)

    def boottime_ms(self) -> int:
        return int(self._loop.now_us * self._rate) + self._offset_ms

    def slept(self, duration_ms: int) -> None:
        """The machine is suspended for so long: CLOCK_BOOTTIME goes on (CLOCK_MONOTONIC would not, history 10d)."""
