"""Every row of the DTX contract on one broker, on three, and on three whose primary is killed between each two of its steps.

An open branch ends with its primary (T8), so a row is not cut where it has one: what is answered then is a row of its own
(`open branch, failover`). The rows in `ALWAYS_OPEN` have one between all of their steps.
"""

import pytest

from tests.conformance.contract import NEEDS_BACKUP, ROWS
from tests.conformance.simulated_rig import SimulatedRig

ALWAYS_OPEN: dict[str, str] = {}
"""Rows for which a killed primary makes no sense, each with its reason."""


def run(text: str, brokers: int = 3, kill_before: int = 0) -> SimulatedRig:
    rig = SimulatedRig(brokers, kill_before)
    ROWS[text](rig)
    rig.finish()
    return rig


@pytest.mark.parametrize("text", [text for text in ROWS if text not in NEEDS_BACKUP])
def test_row_on_one_broker(text: str) -> None:
    run(text, brokers=1)


@pytest.mark.parametrize("text", ROWS)
def test_row_on_three_brokers_and_with_the_primary_killed_between_its_steps(text: str) -> None:
    whole = run(text)
    places = [step for step, is_open in enumerate(whole.open_at, 1) if step > 1 and not is_open]
    assert bool(places) != (text in ALWAYS_OPEN), f"{text}: may be cut before steps {places}"
    for step in places:
        run(text, kill_before=step)
