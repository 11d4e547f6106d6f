"""Long steps fail the test in which they began, and what a slow host may explain runs it again."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.runtime.loop_watch import REPORTS, LongStep
from tests.conftest import TESTS
from tests.long_steps import HeldUp, HeldUpBriefly, LongSteps, read_known, refuse

ROOT = TESTS.parent


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LongSteps:
    monkeypatch.setenv(REPORTS, "")
    return LongSteps(tmp_path, read_known("# a comment\n\nSlow.work -- in pieces\na::slow -- big\n"))


def find(directory: Path, function: str, process: int = 1, began: float | None = None) -> None:
    """A process writes down a step."""
    stacks = [[f"{function} (core/slow.py:3)", "Driver.drain (runtime/driver.py:1)"]]
    step = {"process": "broker", "seconds": 0.1, "stacks": stacks, "began": began or time.monotonic()}
    with (directory / f"{process}.jsonl").open("a") as file:
        file.write(json.dumps(step) + "\n")


def test_a_run_of_tests_hears_of_each_step_once_and_not_of_those_that_are_known(
    steps: LongSteps, tmp_path: Path
) -> None:
    steps.end("a::b")
    find(tmp_path, "Slow.work")
    find(tmp_path, "Other.work")
    with pytest.raises(
        HeldUp, match=r"\Abroker: a step of 100 ms of processor time\n    Other\.work.*\n.*\Z"
    ):
        steps.end("a::b")
    steps.end("a::b")
    find(tmp_path, "Other.work")
    steps.end("a::slow[one]")


def test_a_step_is_of_the_test_in_which_it_began(steps: LongSteps, tmp_path: Path) -> None:
    began = time.monotonic()
    steps.end("a::slow[one]")
    steps.end("a::b")
    find(tmp_path, "Other.work", began=began)
    steps.end("a::c")  # It began in a test in which they are known.
    between = time.monotonic()
    steps.end("a::d")
    find(tmp_path, "Other.work", began=between)
    with pytest.raises(HeldUp, match=r"\Ain a::d, ") as refused:
        steps.end("a::slow")
    assert not isinstance(refused.value, HeldUpBriefly), "the other test does not run again"


def test_steps_of_several_processes_are_heard_of_in_whatever_order(steps: LongSteps, tmp_path: Path) -> None:
    for process, function in ((2, "First.work"), (1, "Second.work"), (3, "Third.work")):
        find(tmp_path, function, process)
        with pytest.raises(HeldUp, match=function):
            steps.end("a::b")


@pytest.mark.parametrize(("seconds", "is_brief"), [((0.149,), True), ((0.151,), False), ((0.06, 0.2), False)])
def test_a_slow_host_may_explain_a_step_that_is_a_little_too_long(
    seconds: tuple[float, ...], is_brief: bool
) -> None:
    with pytest.raises(HeldUp) as refused:
        refuse([LongStep("broker", found, (), 0.0) for found in seconds])
    assert isinstance(refused.value, HeldUpBriefly) is is_brief


RUN = """
import time
import pytest
from lockstep.runtime.loop_watch import LongStep
from tests.long_steps import refuse

runs = {"once": 0, "always": 0, "much": 0, "other": 0, "teardown": 0}

def held_up(name, seconds, times):
    runs[name] += 1
    if runs[name] <= times:
        refuse([LongStep("broker", seconds, (), 0.0)])

@pytest.fixture
def behind():
    yield
    held_up("teardown", 0.1, 1)

def test_once(): held_up("once", 0.1, 1)
def test_behind(behind): pass
def test_always(): held_up("always", 0.1, 9)
def test_much(): held_up("much", 0.2, 1)
def test_other():
    runs["other"] += 1
    raise ValueError
def test_last(): assert runs == {"once": 2, "teardown": 2, "always": 3, "much": 1, "other": 1}
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_test_runs_again_for_a_brief_step_and_for_nothing_else(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_run.py").write_text(RUN)
    command = [sys.executable, "-m", "pytest", f"--rootdir={ROOT}", f"--config-file={ROOT}/pyproject.toml"]
    arguments = ["-n", workers, "--dist=loadfile", str(tmp_path / "test_run.py")]
    run = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert "3 failed, 4 passed, 4 rerun" in run.stdout, run.stdout
    assert run.stdout.count("RERUN ") == 4, run.stdout


def test_a_known_step_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 'name -- what is to be done', found 'Slow.work'"):
        read_known("Slow.work\n")
