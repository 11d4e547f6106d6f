"""Every scenario holds: what its history did to a weaker rule does not happen. `python -m tests.simulation --scenario NAME`."""

import pytest

from tests.simulation.staging.scenario import Scenario, all_scenarios

ANOTHER_SEED = 1


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=all_scenarios())
def test_scenario_holds(scenario: Scenario) -> None:
    assert not list(scenario.violations())


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=all_scenarios())
def test_scenario_holds_in_another_world(scenario: Scenario) -> None:
    """Its history comes about by its script, and not by limits and delays that a seed happens to draw."""
    assert not list(scenario.violations(seed=ANOTHER_SEED))


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=all_scenarios())
def test_scenario_tells_its_history(scenario: Scenario) -> None:
    assert scenario.module.__doc__ and len(scenario.module.__doc__) > 200
