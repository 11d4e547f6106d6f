"""Rounds: every case on every system in turn, again and again, so that whatever else the machine does meets all of them alike.

Law: only the system whose turn it is works; the others run, idle. Which one begins changes with the round. What came out noisy is
measured again when the machine is quiet, whoever's it is, and the least disturbed one counts, not the fastest; a run has so much
time for that, and then takes what comes.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.cases import Case
from bench.environment import NOISY_SLOWDOWN
from bench.load_programs import LoadFailed, Plan, measure
from bench.processor_speed import wait_until_fast
from bench.results import Measurement
from bench.tables import figure

PATIENCE_SECONDS = 900.0
"""Of a run, for waiting until the machine is quiet, and for measuring again."""
NOISY_TRIES_MAX = 4
"""Of one measurement."""
_WAIT_SECONDS = 60.0


class System(Protocol):
    """Something under load."""

    name: str
    syncs: str

    def handles(self, case: Case) -> bool:
        """Whether there is something like it here."""

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """How it is measured."""


def turns(cases: Sequence[Case], systems: Sequence[System], rounds: int) -> Iterator[tuple[Case, System]]:
    """Case by case within a round; the systems of a case directly one after the other."""
    for number in range(rounds):
        for case in cases:
            able = [system for system in systems if system.handles(case)]
            first = number % max(1, len(able))
            for system in able[first:] + able[:first]:
                yield case, system


async def run_rounds(
    console: Console,
    cases: Sequence[Case],
    systems: Sequence[System],
    rounds: int,
    seconds: float,
    directory: Path,
) -> list[Measurement]:
    """What was measured, in that order. A load program that fails is tried once more: then the case is missing."""
    found: list[Measurement] = []
    patience = Patience(PATIENCE_SECONDS)
    await wait_until_fast(NOISY_SLOWDOWN, _WAIT_SECONDS)
    for case, system in turns(cases, systems, rounds):

        async def once(case: Case = case, system: System = system) -> Measurement:
            one = await measure(await system.plan(case, seconds=seconds), directory)
            console.print(line(one))
            return one

        for is_last in (False, True):
            try:
                found.append(await patience.least_noisy(once))
                break
            except LoadFailed as failure:
                console.print(f"{system.name}, {case.title}: {failure}{'' if is_last else ', once more'}")
    return found


class Patience:
    """What a run has left of the time that it spends on measurements that were disturbed."""

    def __init__(self, seconds: float) -> None:
        self.seconds_left = seconds

    async def least_noisy(self, once: Callable[[], Awaitable[Measurement]]) -> Measurement:
        """Measures by `once`, and again while that came out noisy. Raises `LoadFailed` where the first time failed."""
        loop = asyncio.get_running_loop()
        best = await once()
        for _ in range(NOISY_TRIES_MAX - 1):
            if not best.is_noisy or self.seconds_left <= 0:
                break
            begin = loop.time()
            await wait_until_fast(NOISY_SLOWDOWN, min(_WAIT_SECONDS, self.seconds_left))
            with contextlib.suppress(LoadFailed):
                best = min(best, await once(), key=_disturbance)
            self.seconds_left -= loop.time() - begin
        return best


def _disturbance(one: Measurement) -> tuple[bool, float]:
    return one.is_noisy, one.slowdown


def line(one: Measurement) -> str:
    """Of one measurement, for the terminal."""
    noisy = (
        f", others {one.other_cores:.2f} cores, slowdown {one.slowdown:.2f}: noisy" if one.is_noisy else ""
    )
    return (
        f"{one.system:10} {one.workload} {one.case} ({one.path}):"
        f" {figure(one.messages_per_second)} msgs/s, {figure(one.operations_per_second)}/s, p50 {one.p50_ms:.2f} ms,"
        f" p99 {one.p99_ms:.2f} ms, servers {figure(one.server_us)} us/msg, client {figure(one.client_us)} us/msg{noisy}"
    )
