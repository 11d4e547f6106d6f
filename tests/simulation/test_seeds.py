"""Two hundred seeds break nothing. `make simulate SEEDS=3000` runs as many more as one has patience for."""

import pytest

from tests.simulation.__main__ import failure
from tests.simulation.options import draw
from tests.simulation.run import run

SEEDS = 200
PARTS = 20
"""Tests that share the seeds, so that workers share them too."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_break_nothing(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        report = run(draw(seed))
        assert not report.broken, failure(report)
