"""Seeds with coordinators: distributed transactions over real brokers that fail over, each with one outcome.

`python -m tests.simulation --coordinators --seeds 300` runs more of them, and fails for a branch that it never reached.
"""

import pytest

from tests.simulation.__main__ import failure
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.run import run

SEEDS = 40
PARTS = 10
"""Tests that share the seeds, so that workers share them too."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_distributed_transaction_has_one_outcome(part: int) -> None:
    """Of each of a part's seeds that is so. Not each has time for a commit: in one all disks lose power, and etcd is set back."""
    told = 0
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        report = run(draw_coordinated(seed))
        assert not report.broken, failure(report, "--coordinators")
        told += report.totals["distributed transactions told committed"]
    assert told


def test_a_seed_with_coordinators_repeats() -> None:
    assert run(draw_coordinated(3)).digest == run(draw_coordinated(3)).digest
