"""Rounds: every case on every system in turn, again and again, so that whatever else the machine does meets all of them alike.

Law: only the system whose turn it is works: nothing is measured before all of them rest, and what one uses in another's turn is
counted, by system. Who precedes whom is balanced (`order.py`). Patience with what came out noisy is the same whoever's it is.
What was measured stays, whatever becomes of a system or of the run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console

from bench.cases import Case
from bench.load_programs import SYSTEM_LOST, LoadFailed, Plan, measure, reason
from bench.musts import is_of_must
from bench.patience import Patience
from bench.peers.order import ordered
from bench.rest import RESTING_SECONDS_MAX, Pids
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

    async def pids(self) -> Pids:
        """Of all its processes, whatever it is to do. Raises one of `SYSTEM_LOST`."""


class Turn(NamedTuple):
    """A case on a system, in a round; rounds count from 1."""

    case: Case
    system: System
    round: int


def turns(cases: Sequence[Case], systems: Sequence[System], rounds: int) -> Iterator[Turn]:
    """Case by case within a round; the systems of a case directly one after the other."""
    for number in range(rounds):
        for place, case in enumerate(cases):
            able = [system for system in systems if system.handles(case)]
            # By triangular numbers: each case has another distance from the row of the one before, so that who is last in that
            # precedes all alike.
            for system in ordered(able, number + place * (place + 1) // 2):
                yield Turn(case, system, number + 1)


class Rounds:
    """One call of `python -m bench.peers`."""

    def __init__(
        self,
        console: Console,
        directory: Path,
        seconds: float,
        patience_seconds: float,
        resting_seconds_max: float = RESTING_SECONDS_MAX,
    ) -> None:
        """`directory`: on the disk that all systems write to; `seconds`: of each measurement; `patience_seconds`: of all of them
        together; `resting_seconds_max`: that all systems have to come to rest before each.
        """
        self._console = console
        self._directory = directory
        self._seconds = seconds
        self._patience = Patience(patience_seconds)
        self._resting_seconds_max = resting_seconds_max
        self._pids: dict[str, Pids] = {}
        """Of each system by name, as it was last asked: one that is lost may work on."""
        self._left: Counter[tuple[str, Case]] = Counter()
        self._why: dict[tuple[str, Case], str] = {}
        self.found: list[Measurement] = []
        """What counts, in the order in which it was measured."""
        self.set_aside = self._patience.set_aside
        """What was measured again, and does not count."""

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
        self._left = Counter((turn.system.name, turn.case) for turn in order)
        await self._patience.wait()
        lost: list[System] = []
        for turn in order:
            if any(turn.system is one for one in lost):
                continue
            try:
                await self._look_at([system for system in systems if system not in lost], turn.system)
                await self._take(turn)
            except SYSTEM_LOST as error:
                self._console.print(f"{turn.system.name} is lost: {error}", markup=False)
                lost.append(turn.system)
                for place in self._left:
                    if place[0] == turn.system.name:
                        self._why.setdefault(place, reason(error))

    async def _look_at(self, systems: Sequence[System], at_turn: System) -> None:
        """Which processes they have. Raises what the one whose turn it is raises; another's is found in its own turn."""
        for system in systems:
            try:
                self._pids[system.name] = await system.pids()
            except SYSTEM_LOST:
                if system is at_turn:
                    raise

    async def _take(self, turn: Turn) -> None:
        case, system = turn.case, turn.system

        async def once() -> Measurement:
            plan = await system.plan(case, seconds=self._seconds)
            one = await measure(
                plan,
                self._directory,
                self._pids,
                round_number=turn.round,
                resting_seconds_max=self._resting_seconds_max,
            )
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
