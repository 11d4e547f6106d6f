"""A seed is one run: the same under any hash seed, and again in the same process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.options import draw
from tests.simulation.run import run

SEEDS = 3
START = 7


def digests(hash_seed: str) -> list[str]:
    """The digest of each seed, as the command prints them."""
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seeds",
            str(SEEDS),
            "--start",
            str(START),
            "--jobs",
            "1",
            "--digests",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in finished.stdout.splitlines() if line.startswith("seed ")]


def test_runs_of_one_seed_are_equal_under_two_hash_seeds() -> None:
    first, second = digests("0"), digests("12345")
    assert len(first) == SEEDS
    assert first == second


def test_a_seed_repeats_in_one_process() -> None:
    assert run(draw(START)).digest == run(draw(START)).digest
