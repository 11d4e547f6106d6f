"""Courtesy: work that nobody waits for, with the processor offered to others between its pieces.

Law: whoever takes the processor and keeps it is not offered it again for a while: on a machine that others keep busy such work
would never get on.
"""

import os
import time
from collections.abc import Callable

KEPT_SECONDS = 0.003
"""Who answers clients is done by then; a process that computes keeps the processor until the kernel takes it."""
PAUSE_SECONDS = 0.1


class Courtesy:
    """Called between two pieces. Lives as long as the process."""

    def __init__(
        self,
        offer: Callable[[], object] = os.sched_yield,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._offer = offer
        self._clock = clock
        self._pauses_until = 0.0

    def __call__(self) -> None:
        """Lets whoever waits for this processor run first."""
        before = self._clock()
        if before < self._pauses_until:
            return
        self._offer()
        after = self._clock()
        if after - before > KEPT_SECONDS:
            self._pauses_until = after + PAUSE_SECONDS
