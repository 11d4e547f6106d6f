"""Nothing is measured before every system of a run is at rest."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench import rest
from bench.measuring import cpu_seconds
from bench.rest import at_rest

BURNS = """
import sys, time
print("burning", flush=True)
while time.process_time() < float(sys.argv[1]): pass
time.sleep(600)
"""
NEVER = 1_000
"""So many looks are never done in a test."""


class Burning:
    """Processes that burn so much processor time, however long that takes them, and idle then."""

    def __init__(self) -> None:
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self, cpu_seconds: float = 0.0) -> int:
        """The pid of one that has begun."""
        command = (sys.executable, "-I", "-S", "-c", BURNS, str(cpu_seconds))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._started.append(process)
        assert process.stdout is not None
        await process.stdout.readline()
        return process.pid

    async def stop(self) -> None:
        for one in self._started:
            one.kill()
            await one.wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few, and such that one who burns is seen also where many others want the processors."""
    monkeypatch.setattr(rest, "LOOKS", 3)
    monkeypatch.setattr(rest, "RESTING_CORES", 0.05)


@pytest_asyncio.fixture
async def burning() -> AsyncIterator[Burning]:
    made = Burning()
    yield made
    await made.stop()


@pytest.mark.usefixtures("looks")
async def test_a_system_that_works_on_is_waited_for_whoever_it_is(burning: Burning) -> None:
    idle, late = await burning.start(), await burning.start(1.0)
    assert await at_rest({"own": {"server": idle}, "peer": {"n1": late}}) == []
    assert cpu_seconds(late) > 0.9, "it has done what it had to do"


@pytest.mark.usefixtures("looks")
async def test_who_does_not_come_to_rest_in_time_is_named(
    burning: Burning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "LOOKS", NEVER)
    systems = {"idle": {"server": await burning.start()}, "peer": {"n1": await burning.start(600.0)}}
    assert await at_rest(systems, 3.0) == ["peer"]
