"""Seeds of coordinators under faults, and the proof that each rule that they rest on is needed."""

import pytest

from services.coordinator.core.messages import State
from services.coordinator.core.steps import Step
from tests.simulation.coordination.mutations import MUTATIONS
from tests.simulation.coordination.world import HARSH, World, violations

SEEDS_PER_TEST = 25
SEEDS = 300
MUTATION_SEEDS_MAX = 150
"""Of which one has to show it; most do within ten."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_all_participants_end_as_their_client_was_told(first: int) -> None:
    steps: set[Step] = set()
    told: set[State] = set()
    crashes = moments = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        # The faults under which mutations are found have to find nothing here.
        world = World(seed, faults=HARSH if seed % 2 else None, long_outages=seed % 3)
        world.run()
        assert not violations(world), f"seed {seed}: {violations(world)}"
        steps |= world.steps
        told |= {state for wish in world.wishes for state in wish.told}
        crashes += world.crashes
        moments += world.moments
    assert steps == set(Step), "the seeds go everywhere"
    assert told == {State.COMMITTED, State.ROLLED_BACK}
    assert crashes > SEEDS_PER_TEST
    assert moments > SEEDS_PER_TEST


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_switched_off_is_noticed(name: str) -> None:
    for seed in range(MUTATION_SEEDS_MAX):
        world = MUTATIONS[name](seed)
        world.run()
        if violations(world):
            return
    pytest.fail(f"nobody noticed in {MUTATION_SEEDS_MAX} seeds")


def test_a_seed_is_one_history() -> None:
    first, second = World(7), World(7)
    first.run()
    second.run()
    assert (first.loop.events, first.log) == (second.loop.events, second.log)
    assert [wish.told for wish in first.wishes] == [wish.told for wish in second.wishes]
