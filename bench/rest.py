"""Systems at rest: before each measurement every system of a run is done with what it was given, whoever's turn it is.

Law: deferred work is nobody's. Who defers it must not do it in another's measured seconds, nor have it done by the disk. What
does not come to rest in time is said of the measurement, which is noisy then.
"""

import asyncio
import os
from collections.abc import Mapping

from bench.measuring import CpuMeter

RESTING_CORES, LOOK_SECONDS, RESTING_SECONDS_MAX = 0.3, 0.3, 60.0
"""They rest while the processes of all together use so little, in each of some looks of so long; or they do not in time."""
LOOKS = 8
"""So many times in a row nothing is done: longer than a store waits until it consolidates what came last."""
_NAMED_CORES = 0.1
"""Who uses so much is named among those that keep all from being at rest, and whoever uses most."""

Pids = Mapping[str, int]
"""Of the processes of a system, by role."""


def write_out() -> None:
    """What is written and not on the disk goes there now, and not in somebody's measured seconds."""
    os.sync()


async def at_rest(systems: Mapping[str, Pids], seconds_max: float = RESTING_SECONDS_MAX) -> list[str]:
    """Returns when all systems rest, and what they wrote is on the disk; or after `seconds_max`, with the names of those that do
    not. What runs below a process counts with it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    quiet = 0
    working: list[str] = []
    while quiet < LOOKS and loop.time() < deadline:
        meters = {name: CpuMeter(pids) for name, pids in systems.items()}
        begin = loop.time()
        for meter in meters.values():
            meter.start()
        await asyncio.sleep(LOOK_SECONDS)
        took = loop.time() - begin
        used = {name: sum(meter.read().values()) / took for name, meter in meters.items()}
        quiet = quiet + 1 if sum(used.values()) < RESTING_CORES else 0
        if not quiet:
            working = [name for name, cores in used.items() if cores >= min(_NAMED_CORES, max(used.values()))]
    await asyncio.to_thread(write_out)
    return working if quiet < LOOKS else []
