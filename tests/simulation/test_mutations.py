"""The simulator finds every mutation: each scenario named for it fails, and its seeds, in a world without that rule.

`python -m tests.simulation.test_mutations [NAME ...]` says which scenarios find a mutation, and which seed does first.
"""

import sys

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
    pytest.param(mutation, id=f"{name} in seeds from {mutation.seeds.start}")
    for name, mutation in MUTATIONS.items()
    if mutation.seeds
]
SEEDS_MAX = 300


@pytest.mark.parametrize(("mutation", "named"), BY_SCENARIO)
def test_scenario_finds_the_mutation(mutation: Mutation, named: str) -> None:
    assert found_by_scenario(mutation, named)


@pytest.mark.parametrize("mutation", BY_SEED)
def test_seeds_find_the_mutation(mutation: Mutation) -> None:
    assert len(mutation.seeds) <= SEEDS_MAX
    assert any(found_by_seed(mutation, seed) for seed in mutation.seeds)


def test_every_mutation_is_found_by_something() -> None:
    assert not [name for name, mutation in MUTATIONS.items() if not mutation.scenarios and not mutation.seeds]


def test_every_history_finds_the_mutation_of_its_rule() -> None:
    named = {scenario.partition("/")[0] for mutation in MUTATIONS.values() for scenario in mutation.scenarios}
    assert not [name for name in all_scenarios() if name.startswith("history_") and name not in named]


def found_by_scenario(mutation: Mutation, named: str) -> list[str]:
    """What is broken when a scenario, or one case of it, is played without the rule."""
    name, _, wanted = named.partition("/")
    scenario = all_scenarios()[name]
    if not wanted:
        return list(scenario.violations(mutation.make))
    case = next(case for case in scenario.cases if str(case) == wanted)
    return scenario.run(case, mutation.make())


def found_by_seed(mutation: Mutation, seed: int) -> list[str]:
    """What a seed finds broken without the rule; an assertion that stops a core is as good."""
    try:
        return run(mutation.options(seed), mutation.make()).broken
    except AssertionError as error:
        return [f"stopped by an assertion: {error!r}"]


def main() -> None:
    """Say which scenarios find each mutation, and which seed finds it first."""
    for name in sys.argv[1:] or MUTATIONS:
        mutation = MUTATIONS[name]
        for named in all_scenarios():
            found = found_by_scenario(mutation, named)
            print(f"{name}: {named}: {found[0][:160] if found else 'holds'}", flush=True)
        for seed in range(SEEDS_MAX):
            found = found_by_seed(mutation, seed)
            if found:
                print(f"{name}: seed {seed}: {found[0][:160]}", flush=True)
                break


if __name__ == "__main__":
    main()
