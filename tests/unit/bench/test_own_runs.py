"""What becomes of a run in which something fails."""

import io
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from bench.cases import Case
from bench.failover import NeverCommitted
from bench.load_programs import Plan
from bench.own_runs import Runs
from bench.results import Trial
from tests.unit.bench.test_load_programs import WORKS

FIRST, SECOND = Case("W1", "publish", 1, 1), Case("W1", "publish", 10, 4)


class Fake:
    """Its load programs do nothing, and those of one case fail."""

    def __init__(self, broken: Case) -> None:
        self._broken = broken

    async def plan(self, case: Case, *, seconds: float, client_processes: int = 1) -> Plan:
        program = "import sys; sys.exit(3)" if case == self._broken else WORKS
        command = (sys.executable, "-I", "-S", "-c", program)
        return Plan(
            "lockstep", "sdk", case.workload, case.title, [command], {"primary": os.getpid()}, 0.0, seconds
        )


def runs(directory: Path, *workloads: str) -> Runs:
    return Runs(Console(file=io.StringIO(), width=200), directory, workloads, 0.1, 1, 0.0)


async def test_a_case_that_fails_is_remembered_and_the_next_one_is_measured(tmp_path: Path) -> None:
    one = runs(tmp_path, "W1")
    await one.measure_all(Fake(FIRST), [FIRST, SECOND])
    assert one.failed == [f"W1 {FIRST.title} (sdk)"]
    assert [found.case for found in one.found] == [SECOND.title]


async def test_a_workload_that_nobody_asked_for_is_not_missing(tmp_path: Path) -> None:
    one = runs(tmp_path, "W2")
    await one.measure_all(Fake(FIRST), [FIRST])
    assert (one.failed, one.found) == ([], [])


async def test_latency_whose_rate_nobody_knows_is_missing_and_the_next_one_is_measured(
    tmp_path: Path,
) -> None:
    one = runs(tmp_path, "W6")
    await one.measure_latency(Fake(FIRST), [(1, 1), (10, 4)])
    assert one.failed == [f"W1 {FIRST.title} (sdk)"]
    assert [(found.workload, found.case) for found in one.found] == [("W6", f"{SECOND.title}, at 100 tx/s")]


async def test_failovers_of_which_one_never_ended_are_missing_but_for_those_before_it(tmp_path: Path) -> None:
    killed = Trial(what="SIGKILL of the primary", seconds=[0.1], other_cores=0.0)

    async def trials() -> AsyncIterator[Trial]:
        yield killed
        raise NeverCommitted("W5 SIGSTOP of the primary: no transaction committed for 30 s")

    one = runs(tmp_path, "W5")
    await one.take_trials(trials())
    assert one.failovers == [killed]
    assert one.failed == ["W5 SIGSTOP of the primary: no transaction committed for 30 s"]
