"""What rounds say of a median."""

import pytest

from bench.intervals import interval


@pytest.mark.parametrize(
    ("count", "low", "high", "is_interval"),
    [(2, 1, 2, False), (5, 1, 5, False), (6, 1, 6, True), (9, 2, 8, True), (12, 3, 10, True)],
)
def test_the_interval_lies_between_two_of_the_rounds(
    count: int, low: float, high: float, is_interval: bool
) -> None:
    """By the table of the sign test: 9 rounds without the outer two have 96.1 %, 12 without the outer four 96.1 %."""
    found = interval([float(count - one) for one in range(count)])
    assert found == (low, high, count, is_interval)


def test_too_few_rounds_say_that_they_are_all() -> None:
    assert str(interval([3.0, 1.0, 2.0])) == "1.00 to 3.00, all of 3 rounds"
    assert str(interval([float(one) for one in range(6)])) == "0.00 to 5.00"
    assert str(interval([3.0])) == "1 round"
    assert interval([]) is None
