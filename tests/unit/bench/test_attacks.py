"""What is wrong with how a bystander fared beside attackers."""

from dataclasses import replace

import pytest

from bench.attacks import P99_MS_MAX, faults
from tests.chaos.attacked import Figures

WELL = Figures(100, 10.0, P99_MS_MAX, 2_000.0, failures=0, leases_lost=0, promotions=0)


def test_a_bystander_that_waits_a_moment_is_well() -> None:
    assert faults(WELL, 0) == faults(WELL, 1) == faults(WELL, 20) == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (replace(WELL, leases_lost=1), "lease lost"),
        (replace(WELL, promotions=1), "lease lost"),
        (replace(WELL, failures=1), "message failed"),
        (replace(WELL, answers=0), "message failed"),
        (replace(WELL, p99_ms=P99_MS_MAX + 1), "p99 above 500 ms"),
    ],
)
def test_what_happens_to_it_beside_one_attack_is_a_fault(found: Figures, fault: str) -> None:
    assert faults(found, 1) == [fault]


def test_beside_all_attacks_at_once_it_may_wait_for_the_processors() -> None:
    late = replace(WELL, p99_ms=8_000.0)
    assert faults(late, 19) == []
    assert faults(replace(late, failures=1), 19) == ["message failed"]
