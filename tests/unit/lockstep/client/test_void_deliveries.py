"""Who had what of all that a lost session held: found out in steps that no number of deliveries makes longer."""

import random
from itertools import pairwise

import pytest

from lockstep.client.session_events import AllVoided
from lockstep.client.void_deliveries import LOOKED_AT_ONCE, in_order, told_apart
from lockstep.core.ids import Epoch, QueuePosition
from tests.counted_work import CountedOpcodes

MANY = 6 * LOOKED_AT_ONCE


def voided(positions: list[int], consumers: int) -> AllVoided:
    held = {QueuePosition(position): at % consumers for at, position in enumerate(positions)}
    return AllVoided({Epoch(1): {"q": held}})


@pytest.mark.parametrize("consumers", [1, 3, MANY // 2])
@pytest.mark.parametrize("is_in_order", [True, False])
def test_each_consumer_hears_once_of_all_that_it_had_in_ascending_order(
    consumers: int, is_in_order: bool
) -> None:
    positions = list(range(MANY))
    if not is_in_order:
        random.Random(1).shuffle(positions)
    lengths, costs, work = [], 0, told_apart(voided(positions, consumers))
    while True:
        with CountedOpcodes() as counted:
            try:
                cost = next(work)
            except StopIteration as end:
                told = end.value
                break
        lengths.append(counted.total)
        costs += cost
        assert 0 < cost <= LOOKED_AT_ONCE, "in microseconds"
    assert [one.consumer for one in told] == list(range(consumers))
    for one in told:
        assert one.positions == tuple(sorted(positions[one.consumer :: consumers]))
    assert max(lengths) < 20 * LOOKED_AT_ONCE
    passes = 2 if MANY // consumers <= LOOKED_AT_ONCE else 3
    assert costs >= passes * MANY // 5, (
        "what was looked at, sorted, and joined if there is more than goes at once"
    )


def test_few_steps_cost_what_few_deliveries_do() -> None:
    assert sum(told_apart(voided([3, 1, 2], 2))) < 10


def test_nothing_is_left_of_what_is_put_in_order() -> None:
    """To let go of all of it at last would be one long step."""
    positions = [QueuePosition(position) for position in range(MANY, 0, -1)]
    left, work = [len(positions)], in_order(positions)
    for _ in work:
        left.append(len(positions))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == LOOKED_AT_ONCE
