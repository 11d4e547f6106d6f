"""`make bench-...` runs a module that is a program, and says so of one that is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(target: str) -> "subprocess.CompletedProcess[str]":
    """With the checkout as it is, and with what only shows its arguments in place of Python."""
    command = ("make", "--no-print-directory", "-o", "dev", "python=echo", target)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_benchmark_is_run() -> None:
    done = make("bench-store")
    assert (done.returncode, done.stdout) == (0, "-m bench.store\n")


@pytest.mark.parametrize("name", ["failover", "returning", "nonsense", "chain"])
def test_what_is_no_benchmark_fails_and_says_why(name: str) -> None:
    done = make(f"bench-{name}")
    assert done.returncode != 0
    assert f"bench/{name}.py is not there, or is no program" in done.stderr
    assert "-m" not in done.stdout
