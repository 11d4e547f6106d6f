"""The simulator finds every mutation: each scenario named for it fails, and its seed, in a world without that rule.

`python -m tests.simulation.test_mutations [NAME ...]` looks for the scenarios and the first seeds that find mutations.
"""

import sys
from collections.abc import Callable

import pytest

from tests.simulation.mutations import Mutation, all_mutations
from tests.simulation.run import run
from tests.simulation.staging.scenario import all_scenarios

MUTATIONS = all_mutations()
BY_SCENARIO = [
    pytest.param(mutation, named, id=f"{name} in {named}")
    for name, mutation in MUTATIONS.items()
    for named in mutation.scenarios
]
BY_SEED = [
    pytest.param(mutation, mutation.seed, id=f"{name} in seed {mutation.seed}")
    for name, mutation in MUTATIONS.items()
    if mutation.seed is not None
]
SEEDS_MAX = 300


@pytest.mark.parametrize(("mutation", "named"), BY_SCENARIO)
def test_scenario_finds_the_mutation(mutation: Mutation, named: str) -> None:
    assert found_by_scenario(mutation, named)


@pytest.mark.parametrize(("mutation", "seed"), BY_SEED)
def test_seed_finds_the_mutation(mutation: Mutation, seed: int) -> None:
    assert seed < SEEDS_MAX
    assert found_by_seed(mutation, seed)


def test_every_mutation_is_found_by_something() -> None:
    assert not [
        name for name, mutation in MUTATIONS.items() if not mutation.scenarios and mutation.seed is None
    ]


def found_by_scenario(mutation: Mutation, named: str) -> list[str]:
    """What is broken when a scenario, or one case of it, is played without the rule."""
    name, _, wanted = named.partition("/")
    scenario = all_scenarios()[name]
    if not wanted:
        return list(scenario.violations(mutation.make))
    case = next(case for case in scenario.cases if str(case) == wanted)
    return scenario.run(case, mutation.make())


def found_by_seed(mutation: Mutation, seed: int) -> list[str]:
    """What a seed finds broken without the rule."""
    return run(mutation.options(seed), mutation.make()).broken


def main() -> None:
    """Say what finds each mutation."""
    for name in sys.argv[1:] or MUTATIONS:
        mutation = MUTATIONS[name]
        for named in all_scenarios():
            found = _attempt(lambda: found_by_scenario(mutation, named))  # noqa: B023
            if found:
                print(f"{name}: {found[0][:200]}", flush=True)


def _attempt(find: Callable[[], list[str]]) -> list[str]:
    try:
        return find()
    except Exception as error:
        return [f"crash: {error!r}"]


if __name__ == "__main__":
    main()
