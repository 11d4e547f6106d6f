"""The chain in which instructions are counted: it is the real way of a transaction, and the same in every run."""

from collections import Counter
from pathlib import Path

import pytest

from bench.cases import Case
from bench.chain.chain import Chain
from bench.chain.counted import HOPS
from bench.chain.hop import Hop

CASES = (Case("W1", "publish", 10, 4), Case("W2", "move", 10, 2, ring=0))


def turns(folder: Path, case: Case, transactions: int) -> Counter[str]:
    """How often each hop's turn came, for so many transactions of each client."""
    counted: Counter[str] = Counter()

    def turn(hop: Hop) -> None:
        counted[hop.name] += 1
        hop.turn()

    with Chain(folder, case, turn) as chain:
        chain.fill(2 + transactions)
        chain.work(2)
        counted.clear()
        chain.work(transactions)
    return counted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_clients_that_work_at_the_same_time_share_their_frames(tmp_path: Path, case: Case) -> None:
    found = turns(tmp_path, case, 5)
    assert set(found) == set(HOPS)
    # All clients are answered together: a turn of theirs for each of five frames.
    assert found["client"] == 5


def test_every_run_is_the_same(tmp_path: Path) -> None:
    assert turns(tmp_path / "first", CASES[0], 3) == turns(tmp_path / "second", CASES[0], 3)
