"""W5, failover: from the harm to the first transaction committed by a client that reconnects by itself.

SIGKILL of the primary: the supervisor sees the process exit and revokes its lease. SIGSTOP: nobody knows, the lease has to end.
etcd is one member here, so it is its own leader; it is started again at once, and what is shown is the longest time without
a commit in the seconds behind its death. How long brokers take to come back into the in-sync set: `bench/joining.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from bench.environment import OtherLoad
from bench.results import Trial
from lockstep.client.client import Client
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import LockstepError
from lockstep.runtime.etcd_process import EtcdProcess
from tests.integration.cluster import Deployment

QUEUE = "failover"
WATCHED_SECONDS = 6.0
"""Behind the death of etcd: two leases."""

_Commits = asyncio.Queue[tuple[float, float]]
"""(begun, committed) of each transaction."""


async def measured_failovers(
    deployment: Deployment,
    set_name: str,
    kills: int,
    stalls: int,
    etcd_kills: int,
    say: Callable[[str], None],
) -> list[Trial]:
    """So many trials of each kind."""
    trials = []
    for what, goal, count, trial in (
        ("SIGKILL of the primary", "0.5 median, 1.5 worst", kills, _killed),
        ("SIGSTOP of the primary", "lease (3 s) + 0.5", stalls, _stalled),
        ("SIGKILL of etcd, longest pause", "-", etcd_kills, _without_etcd),
    ):
        others = OtherLoad()
        others.start()
        seconds = [await trial(deployment, set_name) for _ in range(count)]
        trials.append(Trial(what, goal, [round(one, 3) for one in seconds], round(others.cores(), 2)))
        say(f"W5 {what}: {' '.join(f'{one:.2f}' for one in seconds)} s")
    return trials


async def _killed(deployment: Deployment, set_name: str) -> float:
    primary = await deployment.primary_of(set_name)

    async def restart() -> None:
        await killing
        await deployment.cluster.start_broker(primary)

    async with _committing(deployment, set_name) as commits:
        await _next(commits, time.monotonic())
        begin = time.monotonic()
        killing = asyncio.create_task(deployment[primary].broker.kill())
        return await _first_commit(deployment, commits, begin, restart)


async def _stalled(deployment: Deployment, set_name: str) -> float:
    primary = await deployment.primary_of(set_name)

    async def resume() -> None:
        deployment[primary].broker.resume()

    async with _committing(deployment, set_name) as commits:
        await _next(commits, time.monotonic())
        deployment[primary].broker.stall()
        return await _first_commit(deployment, commits, time.monotonic(), resume)


async def _first_commit(
    deployment: Deployment, commits: _Commits, begin: float, mend: Callable[[], Awaitable[None]]
) -> float:
    seconds = await _next(commits, begin) - begin
    await mend()
    await deployment.until_in_sync(3)
    return seconds


async def _without_etcd(deployment: Deployment, set_name: str) -> float:
    cluster = deployment.cluster
    assert cluster.etcd is not None
    async with _committing(deployment, set_name) as commits:
        await _next(commits, time.monotonic())
        begin = before = time.monotonic()
        cluster.etcd.kill()
        cluster.etcd = await EtcdProcess.start(cluster.directory / "etcd")
        longest = 0.0
        while before < begin + WATCHED_SECONDS:
            committed = await _next(commits, begin)
            longest, before = max(longest, committed - before), committed
    await deployment.until_in_sync(3)
    return longest


@contextlib.asynccontextmanager
async def _committing(deployment: Deployment, set_name: str) -> AsyncIterator[_Commits]:
    """Commits all the time."""
    commits: _Commits = asyncio.Queue()
    async with deployment.client() as client:
        task = asyncio.create_task(_commit_on_and_on(client, set_name, commits))
        try:
            yield commits
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _commit_on_and_on(client: Client, set_name: str, commits: _Commits) -> None:
    async with client.session() as session:
        await session.declare_queue(QUEUE, QueueOptions(length_max=1000, is_evicting=True), set_name=set_name)
        while True:
            begun = time.monotonic()
            try:
                async with session.transaction() as transaction:
                    await transaction.publish(QUEUE, [b"x" * 1024] * 10)
            except LockstepError:
                continue
            commits.put_nowait((begun, time.monotonic()))


async def _next(commits: _Commits, since: float) -> float:
    """When the first transaction begun after `since` was committed."""
    async with asyncio.timeout(30):
        while True:
            begun, committed = await commits.get()
            if begun >= since:
                return committed
