"""Rounds: every case on every system in turn, again and again, so that whatever else the machine does meets all of them alike.

Law: only the system whose turn it is works; the others run, idle. Which one begins changes with the round. Patience with what
came out noisy is the same whoever's it is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.cases import Case
from bench.environment import NOISY_SLOWDOWN
from bench.load_programs import LoadFailed, Plan, measure
from bench.patience import PATIENCE_SECONDS, WAIT_SECONDS_MAX, Patience
from bench.processor_speed import wait_until_fast
from bench.results import Measurement
from bench.tables import measurement_line


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
    await wait_until_fast(NOISY_SLOWDOWN, WAIT_SECONDS_MAX)
    for case, system in turns(cases, systems, rounds):

        async def once(case: Case = case, system: System = system) -> Measurement:
            one = await measure(await system.plan(case, seconds=seconds), directory)
            console.print(measurement_line(one))
            return one

        for is_last in (False, True):
            try:
                found.append(await patience.least_noisy(once))
                break
            except LoadFailed as failure:
                console.print(f"{system.name}, {case.title}: {failure}{'' if is_last else ', once more'}")
    return found
