"""The DTX contract on real processes: every row on a three-broker cluster, and a sample with the primary killed in the middle.

`make test-full` kills the primary before every step at which no branch is open, as the simulated cluster found them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.contract import NEEDS_BACKUP, ROWS
from tests.conformance.process_rig import BackgroundLoop, ProcessRig
from tests.conformance.simulated_rig import SimulatedRig
from tests.integration.cluster import SETS, Deployment, deployed

IS_FULL = os.environ.get("LOCKSTEP_TESTS", "") == "full"
SIMULATED_ONLY = {
    "prepare; refused by a backup or the store while the branch was open; rbrollback": "a vote no needs a full store",
    "commit; already finished, the same command repeated by its session; its first answer": "an answer is lost on cue",
}
ACROSS_FAILURES = NEEDS_BACKUP - set(SIMULATED_ONLY) | {row for row in ROWS if "restart" in row}
SAMPLE = (
    "commit two-phase; prepared; ok, xid forgotten",
    "prepare again; prepared; ok, and commit still works",
    "commit; heuristically rolled back or committed; heurrb or heurcom, kept until forget",
)


@pytest.fixture(scope="module")
def loop() -> Iterator[BackgroundLoop]:
    background = BackgroundLoop()
    yield background
    background.stop()


@pytest.fixture(scope="module")
def deployment(loop: BackgroundLoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    context = deployed(tmp_path_factory.mktemp("cluster"), sets=SETS)
    yield loop.run(context.__aenter__())
    loop.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("text", sorted(set(ROWS) - set(SIMULATED_ONLY) - ACROSS_FAILURES))
def test_row(text: str, loop: BackgroundLoop, deployment: Deployment) -> None:
    rig = ProcessRig(loop, deployment)
    ROWS[text](rig)
    rig.finish()


@pytest.mark.parametrize("text", sorted(ACROSS_FAILURES))
def test_row_across_failures(text: str, loop: BackgroundLoop, deployment: Deployment) -> None:
    rig = ProcessRig(loop, deployment)
    ROWS[text](rig)
    rig.finish()


@pytest.mark.parametrize("text", sorted(set(ROWS) - set(SIMULATED_ONLY)) if IS_FULL else SAMPLE)
def test_row_with_the_primary_killed_between_its_steps(
    text: str, loop: BackgroundLoop, deployment: Deployment, tmp_path: Path
) -> None:
    simulated = SimulatedRig()
    ROWS[text](simulated)
    places = [step for step, is_open in enumerate(simulated.open_at, 1) if step > 1 and not is_open]
    for step in places if IS_FULL else places[-1:]:
        rig = ProcessRig(loop, deployment, kill_before=step)
        ROWS[text](rig)
        rig.finish()
