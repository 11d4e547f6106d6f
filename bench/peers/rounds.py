"""Rounds: every case on every system in turn, again and again, so that whatever else the machine does meets all of them alike.

Law: only the system whose turn it is works; the others run, idle. Which one begins changes with the round. Patience with what
came out noisy is the same whoever's it is. What was measured stays, whatever becomes of a system or of the run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.cases import Case
from bench.load_programs import SYSTEM_LOST, LoadFailed, Plan, measure, reason
from bench.musts import is_of_must
from bench.patience import Patience
from bench.results import NOT_YET, Measurement
from bench.tables import measurement_line


class System(Protocol):
    """Something under load."""

    name: str
    syncs: str

    def handles(self, case: Case) -> bool:
        """Whether there is something like it here."""

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """How it is measured. Raises one of `SYSTEM_LOST`."""


def turns(cases: Sequence[Case], systems: Sequence[System], rounds: int) -> Iterator[tuple[Case, System]]:
    """Case by case within a round; the systems of a case directly one after the other."""
    for number in range(rounds):
        for case in cases:
            able = [system for system in systems if system.handles(case)]
            first = number % max(1, len(able))
            for system in able[first:] + able[:first]:
                yield case, system


class Rounds:
    """One call of `python -m bench.peers`."""

    def __init__(self, console: Console, directory: Path, seconds: float, patience_seconds: float) -> None:
        """`directory`: on the disk that all systems write to; `seconds`: of each measurement; `patience_seconds`: of all of them
        together.
        """
        self._console = console
        self._directory = directory
        self._seconds = seconds
        self._patience = Patience(patience_seconds)
        self._left: Counter[tuple[str, Case]] = Counter()
        self._why: dict[tuple[str, Case], str] = {}
        self.found: list[Measurement] = []
        """In the order in which it was measured."""

    @property
    def missing(self) -> dict[str, str]:
        """What was to be measured and is not, and why."""
        return {
            f"{name} {case.workload} {case.title} ({count} of its measurements)": self._why.get(
                place, NOT_YET
            )
            for place, count in self._left.items()
            if count
            for name, case in [place]
        }

    @property
    def is_must_missing(self) -> bool:
        """Something that a ratio is of, if only one measurement of several."""
        return any(count and is_of_must(name, case) for (name, case), count in self._left.items())

    async def run(self, cases: Sequence[Case], systems: Sequence[System], rounds: int) -> None:
        """A load program that fails is tried once more, then it is missing; a system that is lost has no turns any more."""
        order = list(turns(cases, systems, rounds))
        self._left = Counter((system.name, case) for case, system in order)
        await self._patience.wait()
        lost: list[System] = []
        for case, system in order:
            if any(system is one for one in lost):
                continue
            try:
                await self._turn(case, system)
            except SYSTEM_LOST as error:
                self._console.print(f"{system.name} is lost: {error}", markup=False)
                lost.append(system)
                for place in self._left:
                    if place[0] == system.name:
                        self._why.setdefault(place, reason(error))

    async def _turn(self, case: Case, system: System) -> None:
        async def once() -> Measurement:
            one = await measure(await system.plan(case, seconds=self._seconds), self._directory)
            self._console.print(measurement_line(one))
            return one

        place = system.name, case
        for is_last in (False, True):
            try:
                self.found.append(await self._patience.least_noisy(once))
                self._left[place] -= 1
                return
            except LoadFailed as failure:
                self._why[place] = reason(failure)
                again = "" if is_last else ", once more"
                self._console.print(f"{system.name}, {case.title}: {failure}{again}", markup=False)
