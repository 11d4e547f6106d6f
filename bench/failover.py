"""W5, failover: from the harm to the first transaction committed by a client that reconnects by itself.

SIGKILL of the primary: the supervisor sees the process exit and revokes its lease. SIGSTOP: nobody knows, the lease has to end.
etcd's leader is harmed where etcd has three members: it is no primary's death, but leases are renewed by whoever leads next, so
what is shown besides is the longest time without a commit in the seconds behind it. How long brokers take to come back into
the in-sync set: `bench/joining.py`.

Law: trials that were measured count, whatever becomes of those behind them; a series that one of them cut short says so.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.environment import OtherLoad
from bench.load_programs import SYSTEM_LOST, reason
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

Take = Callable[[Trial], None]
"""What is done with a series."""


class Commits(asyncio.Queue[tuple[float, float]]):
    """(begun, committed) of each transaction of one client."""

    failure: Exception | None = None
    """Why the last one that was not committed was not."""


class NeverCommitted(Exception):
    """A trial in which no transaction was committed any more: it ends its series."""


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
    commit_seconds_max: float = COMMIT_SECONDS_MAX
    """Without any commit, until nobody waits for another one."""


async def measure_failovers(
    deployment: Deployment, set_name: str, kills: int, stalls: int, take: Take
) -> None:
    """So many trials of each kind, with the primary. Raises one of `SYSTEM_LOST`."""
    cluster = deployment.cluster

    async def primary() -> ChildProcess:
        return cluster.brokers[await deployment.primary_of(set_name)].broker

    async def restart(broker: ChildProcess) -> None:
        await dict(cluster.processes)[broker]()

    for what, count, is_killed in ((PRIMARY_KILLED, kills, True), (PRIMARY_STALLED, stalls, False)):
        harm = Harm(what, is_killed, primary, restart, deployment.until_in_sync)
        await measure_series(deployment, set_name, harm, count, take)


async def measure_etcd_failovers(
    deployment: Deployment, members: EtcdMembers, set_name: str, count: int, take: Take
) -> None:
    """So many trials of each kind, with etcd's leader. Raises one of `SYSTEM_LOST`."""

    async def until_healthy() -> None:
        await members.until_healthy()
        await asyncio.sleep(SETTLING_SECONDS)
        await deployment.until_in_sync()

    for what, is_killed in ((LEADER_KILLED, True), (LEADER_STALLED, False)):
        harm = Harm(what, is_killed, members.leader, ChildProcess.start, until_healthy, WATCHED_SECONDS)
        await measure_series(deployment, set_name, harm, count, take)


def series_of(what: str, *, is_watched: bool) -> list[str]:
    """What trials of one harm are called: by their first commits, and by their longest pauses where more was watched."""
    return [what, f"{what}, {LONGEST_PAUSE}"] if is_watched else [what]


async def measure_series(deployment: Deployment, set_name: str, harm: Harm, count: int, take: Take) -> None:
    """A series of trials, after each of which all is well again; `take` has it as far as it came. Raises one of `SYSTEM_LOST`."""
    if not count:
        return
    found: list[tuple[float, float]] = []
    cut_short = "the run ended"
    others, probe, speed = OtherLoad(), SyncProbe(deployment.cluster.directory), SpeedProbe()
    others.start()
    try:
        async with probe, speed:
            for _ in range(count):
                found.append(await _trial(deployment, set_name, harm))
                await harm.until_healthy()
        cut_short = ""
    except NeverCommitted as error:
        cut_short = reason(error)
        await harm.until_healthy()
    except SYSTEM_LOST as error:
        cut_short = reason(error)
        raise
    finally:
        for place, what in enumerate(series_of(harm.what, is_watched=harm.watched_seconds > 0)):
            take(
                Trial(
                    what=what,
                    seconds=[round(one[place], 3) for one in found],
                    sync_ms=round(probe.median_ms, 3),
                    cut_short=cut_short,
                    other_cores=round(others.cores(), 2),
                    slowdown=round(speed.slowdown, 2),
                )
            )


async def _trial(deployment: Deployment, set_name: str, harm: Harm) -> tuple[float, float]:
    """As `watched` has it."""
    victim = await harm.victim()
    async with _committing(deployment, set_name) as commits:
        await watched(commits, time.monotonic(), seconds_max=harm.commit_seconds_max)
        begin = time.monotonic()
        async with _harmed(victim, harm):
            return await watched(commits, begin, harm.watched_seconds, harm.commit_seconds_max)


@contextlib.asynccontextmanager
async def _harmed(victim: ChildProcess, harm: Harm) -> AsyncIterator[None]:
    """What is killed is seen to exit meanwhile. It is undone even if nothing was committed."""
    never: NeverCommitted | None = None
    if harm.is_killed:
        killing = asyncio.create_task(victim.kill())
    else:
        victim.stall()
    try:
        yield
    except NeverCommitted as error:
        never = error
    if harm.is_killed:
        await killing
        await harm.restart(victim)
    else:
        victim.resume()
    if never is not None:
        raise never


async def watched(
    commits: Commits, begin: float, seconds: float = 0.0, seconds_max: float = COMMIT_SECONDS_MAX
) -> tuple[float, float]:
    """Seconds from `begin` to the first commit of a transaction begun after it, and the longest time without any commit that
    began in `seconds` behind it. Raises `NeverCommitted` where none comes for `seconds_max`."""
    first, longest, before = 0.0, 0.0, begin
    while not first or before < begin + seconds:
        try:
            async with asyncio.timeout(seconds_max):
                begun, committed = await commits.get()
        except TimeoutError:
            why = f": {reason(commits.failure)}" if commits.failure is not None else ""
            raise NeverCommitted(
                f"no transaction committed for {seconds_max:.0f} s{why}"
            ) from commits.failure
        if committed < begin:
            continue
        longest, before = max(longest, committed - before), committed
        if not first and begun >= begin:
            first = committed - begin
    return first, longest


@contextlib.asynccontextmanager
async def _committing(deployment: Deployment, set_name: str) -> AsyncIterator[Commits]:
    """Commits all the time. Raises what ends that."""
    commits = Commits()
    async with deployment.client() as client:
        task = asyncio.create_task(_commit_on_and_on(client, set_name, commits))
        try:
            yield commits
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended


async def _commit_on_and_on(client: Client, set_name: str, commits: Commits) -> None:
    async with client.session() as session:
        await session.declare_queue(QUEUE, QueueOptions(length_max=1000, is_evicting=True), set_name=set_name)
        while True:
            begun = time.monotonic()
            try:
                async with session.transaction() as transaction:
                    await transaction.publish(QUEUE, [b"x" * 1024] * MESSAGES)
            except LockstepError as error:
                commits.failure = error
                continue
            commits.put_nowait((begun, time.monotonic()))
