"""How fast the processors are while something is measured: of a virtual machine others may use what its processors are made of
(the other half of a core, its caches, its clock), and nothing that the machine itself counts tells.

Law: the same small piece of work is done again and again on each processor in turn, and its processor time compared with the
shortest that this process ever saw. Waiting for a processor is not in it, so the load that is measured does not count.
"""

import asyncio
import math
import os
import statistics
import time
from typing import ClassVar

from bench.measuring import Probe

_STEPS = 12_000
"""Of the piece of work: about half a millisecond."""
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 1.0


class SpeedProbe(Probe):
    """Looks at all processors that this process may use."""

    fastest_ms: ClassVar[float] = math.inf
    """What the piece of work took at best, since this process began."""

    def __init__(self) -> None:
        super().__init__()
        self._processors = sorted(os.sched_getaffinity(0))
        self._found_ms: dict[int, list[float]] = {}

    @property
    def slowdown(self) -> float:
        """How many times longer than at best it took on the slower processor, in the median; 0.0: not looked."""
        medians = [statistics.median(each) for each in self._found_ms.values()]
        return max(medians) / SpeedProbe.fastest_ms if medians else 0.0

    async def _run(self) -> None:
        while True:
            for processor in self._processors:
                took_ms = _work_ms(processor)
                self._found_ms.setdefault(processor, []).append(took_ms)
                SpeedProbe.fastest_ms = min(SpeedProbe.fastest_ms, took_ms)
                await asyncio.sleep(_PAUSE_SECONDS)


async def wait_until_fast(slowdown_max: float, seconds_max: float) -> None:
    """Returns when all processors are no slower than that, or after so long; nothing else may work meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while loop.time() < deadline:
        async with SpeedProbe() as probe:
            await asyncio.sleep(_LOOK_SECONDS)
        if probe.slowdown <= slowdown_max:
            return


def _work_ms(processor: int) -> float:
    """Processor time of the piece of work there, in milliseconds."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        begin, total = time.thread_time_ns(), 0
        for step in range(_STEPS):
            total += step * step
        return (time.thread_time_ns() - begin) / 1e6
    finally:
        os.sched_setaffinity(0, allowed)
