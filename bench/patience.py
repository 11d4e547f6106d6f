"""Patience with a machine that is disturbed: a measurement that came out noisy is made again when it is quiet.

Law: the least disturbed one counts, by whichever disturbed it more, other processes or slow processors, and not the fastest; a
run has so much time for that, and then takes what comes. What does not count is kept: whoever doubts can see it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from bench.environment import NOISY_SLOWDOWN
from bench.load_programs import SYSTEM_LOST, LoadFailed
from bench.processor_speed import wait_until_fast
from bench.results import Measurement

PATIENCE_SECONDS = 900.0
"""Of a run, for waiting until the machine is quiet, and for measuring again."""
NOISY_TRIES_MAX = 4
"""Of one measurement."""
_WAIT_SHARE = 15
"""This part of all its patience a run waits for the machine to become quiet, at one time: a minute of a quarter of an hour."""


class Patience:
    """What a run has left of the time that it spends on measurements that were disturbed."""

    def __init__(self, seconds: float) -> None:
        self.seconds_left = seconds
        self.set_aside: list[Measurement] = []
        """Of all that was measured what does not count, in the order in which it was found so."""
        self._wait_seconds_max = seconds / _WAIT_SHARE

    async def wait(self) -> None:
        """Until the machine is quiet, or for as long as it waits at one time."""
        await wait_until_fast(NOISY_SLOWDOWN, min(self._wait_seconds_max, self.seconds_left))

    async def least_noisy(self, once: Callable[[], Awaitable[Measurement]]) -> Measurement:
        """Measures by `once`, and again while that came out noisy. Raises what the first time raises."""
        loop = asyncio.get_running_loop()
        best = await once()
        for _ in range(NOISY_TRIES_MAX - 1):
            if not best.is_noisy or self.seconds_left <= 0:
                break
            begin = loop.time()
            await self.wait()
            try:
                again = await once()
                best, other = (again, best) if again.disturbance < best.disturbance else (best, again)
                self.set_aside.append(other)
            except LoadFailed:
                pass  # There is one already.
            except SYSTEM_LOST:
                break  # Whoever measures on it next will see.
            self.seconds_left -= loop.time() - begin
        return best
