"""What becomes of a run in which something fails."""

import io
import os
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.cases import Case
from bench.load_programs import Plan
from bench.own_runs import Runs
from bench.results import NOT_YET, Trial
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.bench.test_load_programs import WORKS

FIRST, SECOND = Case("W1", "publish", 1, 1), Case("W1", "publish", 10, 4)
OTHER = Case("W2", "move", 10, 4)
KILLED, STALLED = "W5 SIGKILL of the primary", "W5 SIGSTOP of the primary"


class Fake:
    """Its load programs do nothing, those of one case fail, and before another case it is lost."""

    def __init__(self, broken: Case | None = None, lost_at: Case | None = None) -> None:
        self._broken = broken
        self._lost_at = lost_at

    async def plan(self, case: Case, *, seconds: float, client_processes: int = 1) -> Plan:
        if case == self._lost_at:
            raise Rejected(ErrorCode.ILLEGAL_STATE, "broker B2 does not run")
        program = "import sys; sys.exit(3)" if case == self._broken else WORKS
        command = (sys.executable, "-I", "-S", "-c", program)
        return Plan(
            "lockstep", "sdk", case.workload, case.title, [command], {"primary": os.getpid()}, 0.0, seconds
        )


def runs(directory: Path, *workloads: str) -> Runs:
    return Runs(Console(file=io.StringIO(), width=200), directory, workloads, 0.1, 1, 0.0)


def name(case: Case) -> str:
    return f"{case.workload} {case.title} (sdk)"


async def test_a_case_that_fails_is_remembered_and_the_next_one_is_measured(tmp_path: Path) -> None:
    one = runs(tmp_path, "W1")
    one.expect(name(FIRST), name(SECOND))
    await one.measure_all(Fake(FIRST), [FIRST, SECOND])
    assert one.missing == {name(FIRST): "a load program ended with 3"}
    assert one.has_failed
    assert [found.case for found in one.found] == [SECOND.title]


async def test_a_workload_that_nobody_asked_for_is_not_missing(tmp_path: Path) -> None:
    one = runs(tmp_path, "W2")
    assert one.expect(name(FIRST)) == []
    await one.measure_all(Fake(FIRST), [FIRST])
    assert (one.missing, one.has_failed, one.found) == ({}, False, [])


async def test_a_cluster_that_is_lost_takes_what_was_left_of_it_and_nothing_of_the_next_one(
    tmp_path: Path,
) -> None:
    one, lost = runs(tmp_path, "W1", "W2", "W5"), Fake(lost_at=SECOND)
    of_first = one.expect(name(FIRST), name(SECOND), KILLED)
    of_second = one.expect(name(OTHER))
    await one.part(of_first, partial(one.measure_all, lost, [FIRST, SECOND]))
    assert one.missing == {
        **dict.fromkeys([name(SECOND), KILLED], "broker B2 does not run"),
        name(OTHER): NOT_YET,
    }
    await one.part(of_second, partial(one.measure_all, Fake(), [OTHER]))
    assert list(one.missing) == [name(SECOND), KILLED]
    assert one.has_failed
    assert [(found.workload, found.case) for found in one.found] == [("W1", FIRST.title), ("W2", OTHER.title)]


async def test_a_cluster_that_nothing_is_wanted_of_is_not_started(tmp_path: Path) -> None:
    async def started() -> None:
        raise AssertionError("it is started")

    await runs(tmp_path, "W1").part([], started)


async def test_latency_whose_rate_nobody_knows_is_missing_and_the_next_one_is_measured(
    tmp_path: Path,
) -> None:
    one = runs(tmp_path, "W6")
    await one.measure_latency(Fake(FIRST), [(1, 1), (10, 4)])
    assert one.missing == {f"W6 {FIRST.title} (sdk)": "a load program ended with 3"}
    assert [(found.workload, found.case) for found in one.found] == [("W6", f"{SECOND.title}, at 100 tx/s")]


def test_a_series_of_failovers_that_was_cut_short_counts_as_far_as_it_came_and_is_missing(
    tmp_path: Path,
) -> None:
    one = runs(tmp_path, "W5")
    one.expect(KILLED, STALLED)
    killed = Trial(
        what="SIGKILL of the primary", seconds=[0.1], other_cores=0.0, cut_short="nothing committed"
    )
    stalled = Trial(what="SIGSTOP of the primary", seconds=[], other_cores=0.0, cut_short="nothing committed")
    one.take_trial(killed)
    one.take_trial(stalled)
    assert one.failovers == [killed]
    assert one.missing == {
        KILLED: "behind 1 trials: nothing committed",
        STALLED: "behind 0 trials: nothing committed",
    }
    assert one.has_failed


def test_a_series_of_failovers_that_is_whole_is_not_missing(tmp_path: Path) -> None:
    one = runs(tmp_path, "W5")
    one.expect(KILLED)
    one.take_trial(Trial(what="SIGKILL of the primary", seconds=[0.1], other_cores=0.0))
    assert (one.missing, one.has_failed) == ({}, False)
