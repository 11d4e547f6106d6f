"""Nothing is measured before every system of a run is at rest."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench import rest
from bench.rest import at_rest

BURNS = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass\ntime.sleep(60)"


class Burning:
    """Processes that burn a processor for a while, and idle then."""

    def __init__(self) -> None:
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self, seconds: float) -> int:
        command = (sys.executable, "-I", "-S", "-c", BURNS, str(seconds))
        self._started.append(await asyncio.create_subprocess_exec(*command))
        return self._started[-1].pid

    async def stop(self) -> None:
        for one in self._started:
            one.kill()
            await one.wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, which are enough for a test's servers."""
    monkeypatch.setattr(rest, "LOOKS", 2)


@pytest_asyncio.fixture
async def burning() -> AsyncIterator[Burning]:
    made = Burning()
    yield made
    await made.stop()


@pytest.mark.usefixtures("looks")
async def test_a_system_that_works_on_is_waited_for_whoever_it_is(burning: Burning) -> None:
    systems = {"own": {"server": os.getpid()}, "peer": {"n1": await burning.start(1.5)}}
    begin = asyncio.get_running_loop().time()
    assert await at_rest(systems) == []
    assert asyncio.get_running_loop().time() - begin >= 1.5


@pytest.mark.usefixtures("looks")
async def test_who_does_not_come_to_rest_in_time_is_named(burning: Burning) -> None:
    idle = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        systems = {"idle": {"server": idle.pid}, "peer": {"n1": await burning.start(60)}}
        assert await at_rest(systems, 1.0) == ["peer"]
    finally:
        idle.kill()
        await idle.wait()
