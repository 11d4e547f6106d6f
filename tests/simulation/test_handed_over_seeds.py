"""Seeds with sets that are handed over: alone, where no client may notice, and among all other faults.

`python -m tests.simulation --hand-overs --seeds 300` runs more of them, and fails for a branch that it never reached.
"""

import pytest

from tests.simulation.__main__ import failure
from tests.simulation.handed_over import HAND_OVER, NOTICED, draw_handed_over, is_calm
from tests.simulation.run import run

SEEDS = 16
PARTS = 8
"""Tests that share the seeds, so that workers share them too."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_hand_over_breaks_nothing_and_alone_is_not_noticed(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        report = run(draw_handed_over(seed))
        assert not report.broken, failure(report, "--hand-overs")
        if is_calm(seed):
            assert report.faults[HAND_OVER] and report.branches["promoted with open transactions"]
            noticed = {name: report.branches[name] for name in NOTICED if report.branches[name]}
            assert not noticed, f"seed {seed}: {noticed}"
