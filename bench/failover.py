"""W5, failover: from the harm to the first transaction committed by a client that reconnects by itself.

SIGKILL of the primary: the supervisor sees the process exit and revokes its lease. SIGSTOP: nobody knows, the lease has to end.
etcd's leader is harmed where etcd has three members: it is no primary's death, but leases are renewed by whoever leads next, so
what is shown besides is the longest time without a commit in the seconds behind it. How long brokers take to come back into
the in-sync set: `bench/joining.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.environment import OtherLoad
from bench.measuring import SyncProbe
from bench.processor_speed import SpeedProbe
from bench.results import Trial
from lockstep.client.client import Client
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import LockstepError
from lockstep.runtime.supervisor import ChildProcess
from tests.integration.cluster import Deployment
from tests.integration.etcd_members import EtcdMembers

PRIMARY_KILLED, PRIMARY_STALLED = "SIGKILL of the primary", "SIGSTOP of the primary"
LEADER_KILLED, LEADER_STALLED = "SIGKILL of etcd's leader", "SIGSTOP of etcd's leader"
LONGEST_PAUSE = "longest pause"
QUEUE = "failover"
MESSAGES = 10
"""Of each transaction."""
WATCHED_SECONDS = 6.0
"""Behind the harm to etcd's leader: two leases."""
SETTLING_SECONDS = 3.0
"""Behind the return of etcd's leader, a lease: one that hung may revoke leases that ended by its own clock, as if it still led
(etcd issue 15247, which 3.5.1 has), and brokers hear of it when they renew them. That is not to disturb the next trial."""
COMMIT_SECONDS_MAX = 30.0

Commits = asyncio.Queue[tuple[float, float]]
"""(begun, committed) of each transaction."""


class NeverCommitted(Exception):
    """A trial in which no transaction was committed any more: what it worked on cannot be trusted with another one."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done, and how it is undone."""

    what: str
    is_killed: bool
    """SIGKILL; else SIGSTOP, and SIGCONT afterwards."""
    victim: Callable[[], Awaitable[ChildProcess]]
    restart: Callable[[ChildProcess], Awaitable[None]]
    until_healthy: Callable[[], Awaitable[object]]
    watched_seconds: float = 0.0
    """Behind the harm; 0: until the first commit."""


async def measured_failovers(
    deployment: Deployment, set_name: str, kills: int, stalls: int, say: Callable[[str], None]
) -> AsyncIterator[Trial]:
    """So many trials of each kind, with the primary. Raises `NeverCommitted`."""
    cluster = deployment.cluster

    async def primary() -> ChildProcess:
        return cluster.brokers[await deployment.primary_of(set_name)].broker

    async def restart(broker: ChildProcess) -> None:
        await dict(cluster.processes)[broker]()

    for what, count, is_killed in ((PRIMARY_KILLED, kills, True), (PRIMARY_STALLED, stalls, False)):
        harm = Harm(what, is_killed, primary, restart, deployment.until_in_sync)
        for trial in await _measured(deployment, set_name, harm, count, say):
            yield trial


async def measured_etcd_failovers(
    deployment: Deployment, members: EtcdMembers, set_name: str, count: int, say: Callable[[str], None]
) -> AsyncIterator[Trial]:
    """So many trials of each kind, with etcd's leader. Raises `NeverCommitted`."""

    async def until_healthy() -> None:
        await members.until_healthy()
        await asyncio.sleep(SETTLING_SECONDS)
        await deployment.until_in_sync()

    for what, is_killed in ((LEADER_KILLED, True), (LEADER_STALLED, False)):
        harm = Harm(what, is_killed, members.leader, ChildProcess.start, until_healthy, WATCHED_SECONDS)
        for trial in await _measured(deployment, set_name, harm, count, say):
            yield trial


async def _measured(
    deployment: Deployment, set_name: str, harm: Harm, count: int, say: Callable[[str], None]
) -> list[Trial]:
    """The first commits, and the longest pauses where more was watched."""
    if not count:
        return []
    others = OtherLoad()
    async with SyncProbe(deployment.cluster.directory) as probe, SpeedProbe() as speed:
        others.start()
        try:
            found = [await _trial(deployment, set_name, harm) for _ in range(count)]
        except NeverCommitted as error:
            raise NeverCommitted(f"W5 {harm.what}: {error}") from error
        other_cores = others.cores()
    seconds = {harm.what: [first for first, _ in found]}
    if harm.watched_seconds:
        seconds[f"{harm.what}, {LONGEST_PAUSE}"] = [longest for _, longest in found]
    for what, each in seconds.items():
        say(f"W5 {what}: {' '.join(f'{one:.2f}' for one in each)} s")
    return [
        Trial(
            what=what,
            seconds=[round(one, 3) for one in each],
            sync_ms=round(probe.median_ms, 3),
            other_cores=round(other_cores, 2),
            slowdown=round(speed.slowdown, 2),
        )
        for what, each in seconds.items()
    ]


async def _trial(deployment: Deployment, set_name: str, harm: Harm) -> tuple[float, float]:
    """As `watched` has it; all is well again afterwards."""
    victim = await harm.victim()
    async with _committing(deployment, set_name) as commits:
        await watched(commits, time.monotonic())
        begin = time.monotonic()
        async with _harmed(victim, harm):
            found = await watched(commits, begin, harm.watched_seconds)
        await harm.until_healthy()
    return found


@contextlib.asynccontextmanager
async def _harmed(victim: ChildProcess, harm: Harm) -> AsyncIterator[None]:
    """What is killed is seen to exit meanwhile."""
    if harm.is_killed:
        killing = asyncio.create_task(victim.kill())
        yield
        await killing
        await harm.restart(victim)
    else:
        victim.stall()
        yield
        victim.resume()


async def watched(
    commits: Commits, begin: float, seconds: float = 0.0, seconds_max: float = COMMIT_SECONDS_MAX
) -> tuple[float, float]:
    """Seconds from `begin` to the first commit of a transaction begun after it, and the longest time without any commit that
    began in `seconds` behind it. Raises `NeverCommitted` where none comes for `seconds_max`."""
    first, longest, before = 0.0, 0.0, begin
    while not first or before < begin + seconds:
        try:
            begun, committed = await asyncio.wait_for(commits.get(), seconds_max)
        except TimeoutError as error:
            raise NeverCommitted(f"no transaction committed for {seconds_max:.0f} s") from error
        if committed < begin:
            continue
        longest, before = max(longest, committed - before), committed
        if not first and begun >= begin:
            first = committed - begin
    return first, longest


@contextlib.asynccontextmanager
async def _committing(deployment: Deployment, set_name: str) -> AsyncIterator[Commits]:
    """Commits all the time."""
    commits: Commits = asyncio.Queue()
    async with deployment.client() as client:
        task = asyncio.create_task(_commit_on_and_on(client, set_name, commits))
        try:
            yield commits
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _commit_on_and_on(client: Client, set_name: str, commits: Commits) -> None:
    async with client.session() as session:
        await session.declare_queue(QUEUE, QueueOptions(length_max=1000, is_evicting=True), set_name=set_name)
        while True:
            begun = time.monotonic()
            try:
                async with session.transaction() as transaction:
                    await transaction.publish(QUEUE, [b"x" * 1024] * MESSAGES)
            except LockstepError:
                continue
            commits.put_nowait((begun, time.monotonic()))
