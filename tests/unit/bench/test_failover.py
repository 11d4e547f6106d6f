"""What is read from a client's commits around a harm, and what becomes of a series in which one is missing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import pytest

from bench.failover import Commits, Harm, NeverCommitted, measure_series, watched
from bench.load_programs import SYSTEM_LOST
from bench.results import Trial
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.supervisor import ChildProcess
from tests.integration.cluster import Deployment


def commits(*each: tuple[float, float]) -> Commits:
    made = Commits()
    for one in each:
        made.put_nowait(one)
    return made


async def test_the_first_commit_is_of_a_transaction_that_was_begun_after_the_harm() -> None:
    found = commits((8.0, 9.0), (9.5, 10.5), (10.5, 12.0), (12.0, 13.0))
    assert await watched(found, begin=10.0) == (2.0, 1.5)
    assert found.get_nowait() == (12.0, 13.0), "nobody waits for more"


async def test_the_longest_pause_may_come_behind_the_first_commit() -> None:
    found = commits((10.0, 10.5), (10.5, 11.0), (11.0, 14.0), (14.0, 14.5), (14.5, 16.0), (16.0, 29.0))
    assert await watched(found, begin=10.0, seconds=6.0) == (0.5, 3.0)


async def test_a_pause_that_begins_while_it_is_watched_is_waited_for() -> None:
    found = commits((10.0, 10.5), (10.5, 15.5), (15.5, 25.5))
    assert await watched(found, begin=10.0, seconds=6.0) == (0.5, 10.0)


async def test_a_client_that_never_commits_again_is_not_waited_for_without_end() -> None:
    with pytest.raises(NeverCommitted):
        await watched(commits((8.0, 9.0)), begin=10.0, seconds_max=0.01)


async def test_whoever_waited_in_vain_says_why_the_client_could_not_commit() -> None:
    found = commits()
    found.failure = Rejected(ErrorCode.UNAVAILABLE, "nobody serves it")
    with pytest.raises(NeverCommitted, match="nobody serves it"):
        await watched(found, begin=10.0, seconds_max=0.01)


@dataclass
class Servers:
    """Whoever serves one client, as far as a series asks for it."""

    directory: Path
    victim: ChildProcess
    fails_in: int = 0
    """The trial in which nothing is committed any more until the victim is back."""
    is_healthy: bool = True
    """And it comes back as it should."""
    declares: bool = True
    trials: int = 0
    commits: int = 0
    """Of the trial."""

    @property
    def cluster(self) -> Self:
        return self

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Self]:
        yield self

    session = transaction = client

    async def declare_queue(self, *_: object, **__: object) -> None:
        if not self.declares:
            raise Rejected(ErrorCode.STORE_FULL, "the store is full")

    async def publish(self, *_: object) -> None:
        await asyncio.sleep(0.001)
        self.commits += 1
        if self.trials == self.fails_in and self.commits > 1:
            raise Rejected(ErrorCode.UNAVAILABLE, "nobody serves it")

    async def next_victim(self) -> ChildProcess:
        self.trials += 1
        self.commits = 0
        return self.victim

    async def restart(self, victim: ChildProcess) -> None:
        await victim.start()

    async def until_healthy(self) -> None:
        assert self.is_healthy or self.trials < self.fails_in, "not in sync within 60 s"

    async def series(self, count: int) -> list[Trial]:
        """What is taken of a series of so many, whatever it raises."""
        taken: list[Trial] = []
        harm = Harm(
            *("SIGKILL", True, self.next_victim, self.restart, self.until_healthy), commit_seconds_max=0.2
        )
        with contextlib.suppress(*SYSTEM_LOST):
            await measure_series(cast(Deployment, self), "set", harm, count, taken.append)
        return taken


@pytest.fixture
async def victim(tmp_path: Path) -> AsyncIterator[ChildProcess]:
    process = ChildProcess("victim", ("sleep", "60"), tmp_path / "victim.log")
    await process.start()
    yield process
    await process.kill()


async def test_a_series_that_is_whole_says_nothing_of_being_cut_short(
    tmp_path: Path, victim: ChildProcess
) -> None:
    (found,) = await Servers(tmp_path, victim).series(2)
    assert (len(found.seconds), found.cut_short) == (2, "")
    assert victim.is_running


@pytest.mark.parametrize("is_healthy", [True, False])
async def test_trials_before_one_that_never_committed_count_and_its_harm_is_undone(
    tmp_path: Path, victim: ChildProcess, is_healthy: bool
) -> None:
    (found,) = await Servers(tmp_path, victim, fails_in=3, is_healthy=is_healthy).series(5)
    assert len(found.seconds) == 2
    assert "no transaction committed" in found.cut_short
    assert "nobody serves it" in found.cut_short
    assert victim.is_running


async def test_what_ended_the_client_is_said(tmp_path: Path, victim: ChildProcess) -> None:
    (found,) = await Servers(tmp_path, victim, declares=False).series(2)
    assert (found.seconds, found.cut_short) == ([], "the store is full")
