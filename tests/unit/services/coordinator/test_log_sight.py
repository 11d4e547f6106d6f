"""Since when a coordinator has etcd in sight, by the clocks that name transactions."""

import pytest

from lockstep.core.branch_names import RANDOM_BYTES, new_global_id
from lockstep.core.clock import Now
from services.coordinator.core.log_sight import LogSight
from services.coordinator.core.settings import CoordinatorLimits

LIMITS = CoordinatorLimits()
SINCE_MS, SINCE_WALL_MS, PASSED_MS = 50_000, 10_000_000, 600_000
"""When it came into sight, by the clock as it is now; and how long ago that was."""


@pytest.mark.parametrize("set_ms", [0, 600_000, -300_000], ids=["as it was", "set forward", "set back"])
def test_a_transaction_is_younger_if_the_own_clock_says_so_as_it_was_then_and_as_it_is_now(
    set_ms: int,
) -> None:
    """And its name is none of a time to come. `set_ms`: by how much that clock was set since."""
    sight = LogSight(LIMITS)
    sight.begin(Now(SINCE_MS, SINCE_WALL_MS - set_ms))
    for passed_ms in range(0, PASSED_MS + 1, LIMITS.unasked_ms):
        now = Now(SINCE_MS + passed_ms, SINCE_WALL_MS + passed_ms)
        sight.seen(now.boottime_ms, now)

    def covers(begun_ms: int) -> bool:
        return sight.covers(new_global_id(begun_ms, bytes(RANDOM_BYTES)), None, now)

    since_ms = max(SINCE_WALL_MS, SINCE_WALL_MS - set_ms) + LIMITS.clock_ms
    assert [covers(since_ms), covers(since_ms + 1)] == [False, True]
    latest_ms = now.wall_ms + LIMITS.clock_ms
    assert [covers(latest_ms), covers(latest_ms + 1)] == [True, False]
