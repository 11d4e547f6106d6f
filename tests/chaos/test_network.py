"""The network between brokers, stores, etcd and clients is cut, one way or both, or refuses connections: real machines' networks.

Each scenario is in `network_cluster.py`. One cluster serves them all, one after the other; a failed one gets a new cluster.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.machines import Machines, reason_to_skip
from tests.chaos.network_cluster import MACHINES, SCENARIOS

pytestmark = pytest.mark.slow

SCENARIO_SECONDS = 180.0
ROOT = Path(__file__).parents[2]


class Conductor:
    """The process on the clients' machine; lives for the tests of this file, or until one fails."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = 0
        self._machines: Machines | None = None
        self._process: subprocess.Popen[str] | None = None

    def play(self, name: str) -> dict[str, str]:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        answer = self._answer(time.monotonic() + SCENARIO_SECONDS)
        if answer["error"]:
            self.stop()
        return answer

    def _start(self) -> None:
        self._starts += 1
        self._machines = machines = Machines(MACHINES)
        machines.make()
        home = self._directory / str(self._starts)
        home.mkdir()
        command = (
            *(sys.executable, "-W", "ignore", "-m", "tests.chaos.network_cluster"),
            *(machines.prefix, str(home)),
        )
        with (home / "conductor.log").open("wb") as log:
            self._process = subprocess.Popen(
                machines.command("clients", *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )

    def _answer(self, deadline: float) -> dict[str, str]:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
        line = self._process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        log = (self._directory / str(self._starts) / "conductor.log").read_text()[-4000:]
        return {"error": f"no answer ({'it ended' if ready else 'too late'}): {log}"}

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its children end with it
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        if self._machines is not None:
            self._machines.remove()


@pytest.fixture(scope="module")
def conductor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conductor]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    process = Conductor(tmp_path_factory.mktemp("network"))
    try:
        yield process
    finally:
        process.stop()


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_torn_or_told_twice_when_the_network_fails(conductor: Conductor, name: str) -> None:
    answer = conductor.play(name)
    assert not answer["error"], answer["error"]
    print(answer["summary"])
