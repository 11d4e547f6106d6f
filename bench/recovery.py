"""Recovery: all processes are killed and started again; how long until the first transaction commits, with deep queues.

Law: the same number of messages lies in the queue each time, while more and more have passed through before (published and
accepted: 0, 1 and 3 times as many). The time must not depend on them. Each of these histories has a cluster of its own, and they
are killed and started in turn, so that whatever else the machine does meets all of them alike; etcd stays. Ratios are of medians.
`make bench-recovery`, or `python -m bench.recovery --messages 1000000 --passed 0 --trials 3`.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import SyncProbe, cpu_seconds, load
from bench.memory import fill
from bench.scratch import add_directory, run_on_disk
from lockstep.core.errors import LockstepError
from tests.integration.cluster import Deployment
from tests.integration.log_tail import LogTail

SET, QUEUE = "bench", "deep"
CREDIT = 5000
_TABLE_WIDTH = 180
"""Of what is written to a file, too."""
RECOVERY_SECONDS_MAX = 600
QUIET_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Result:
    """One recovery."""

    passed: int
    """Times as many messages as there are had passed through before."""
    listening: float
    """Seconds until all processes listened."""
    loaded: float
    """Until the broker that leads had loaded its disk; like all, from the start of the first process."""
    committed: float
    """Until the first transaction was committed."""
    in_sync: float
    """Until all three were in sync."""
    cpu: float
    """Processor seconds that all stores and brokers had used by the first commit: other load on the machine is not in it."""
    disk_mib: float
    sync_ms: float


async def main(messages: int, passings: list[int], trials: int, brokers: int, scratch: Path) -> None:
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    results: list[Result] = []
    async with contextlib.AsyncExitStack() as stack:
        histories: dict[int, Deployment] = {}
        for passed in passings:
            home = scratch / f"passed-{passed}"
            members = [f"B{number + 1}" for number in range(brokers)]
            deployment, _ = await stack.enter_async_context(
                deployed(home, sets={SET: members}, brokers=brokers)
            )
            histories[passed] = deployment
            await fill(deployment, SET, QUEUE, messages)
            for _ in range(passed):
                await _pass_through(deployment, messages)
            await _kill(deployment)
            console.print(
                f"{messages:,} messages are in the queue, {passed} times as many passed through before"
            )
        for _ in range(trials):
            for passed, deployment in histories.items():
                results.append(await _recover(deployment, passed, deployment.cluster.directory))
                console.print(results[-1])
    console.print(_table(results, messages, brokers))
    console.print(f"load {load():.1f}")


async def _pass_through(deployment: Deployment, messages: int) -> None:
    """As many messages as there are are published behind them, and as many accepted at the queue's head."""
    await fill(deployment, SET, QUEUE, messages)
    async with (
        deployment.client() as client,
        client.session() as session,
        await session.consume(QUEUE, credit=CREDIT) as consumer,
    ):
        await asyncio.gather(*[(await anext(consumer)).accept() for _ in range(messages)])


async def _kill(deployment: Deployment) -> None:
    await _quiet(deployment)
    brokers = deployment.cluster.brokers
    await asyncio.gather(*(one.broker.kill() for one in brokers.values()))
    await asyncio.gather(*(one.store.kill() for one in brokers.values()))


async def _recover(deployment: Deployment, passed: int, home: Path) -> Result:
    """Starts what was killed, and kills it again."""
    brokers = deployment.cluster.brokers
    tails = [LogTail(one.broker.log) for one in brokers.values()]
    async with SyncProbe(home) as probe:
        start, begin = time.time(), time.monotonic()
        await asyncio.gather(*(deployment.cluster.start_store(name) for name in brokers))
        await asyncio.gather(*(deployment.cluster.start_broker(name) for name in brokers))
        listening = time.monotonic() - begin
        await _commit(deployment)
        committed = time.monotonic() - begin
        cpu = sum(cpu_seconds(child.pid) for one in brokers.values() for child in (one.broker, one.store))
        await deployment.until_in_sync(len(brokers), seconds=RECOVERY_SECONDS_MAX)
        in_sync = time.monotonic() - begin
    loaded = [at - start for tail in tails for at, event in tail.events() if event.startswith("loaded")]
    used = sum(file.stat().st_blocks * 512 for file in (home / "B1" / "store").rglob("*") if file.is_file())
    await _kill(deployment)
    return Result(passed, listening, min(loaded), committed, in_sync, cpu, used / 2**20, probe.median_ms)


async def _quiet(deployment: Deployment) -> None:
    """Returns when no store works any more: right behind a burst its journal is longer, which is not what is asked for here."""
    pids = [one.store.pid for one in deployment.cluster.brokers.values()]
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    before, used = -1.0, sum(map(cpu_seconds, pids))
    while used - before > 0.1:
        assert time.monotonic() < deadline, f"the stores still work after {QUIET_SECONDS_MAX} s"
        await asyncio.sleep(2.0)
        before, used = used, sum(map(cpu_seconds, pids))


async def _commit(deployment: Deployment) -> None:
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while True:
        try:
            async with deployment.client() as client, client.session() as session:
                async with session.transaction() as transaction:
                    await transaction.publish(QUEUE, [b"first"])
                return
        except LockstepError:
            assert time.monotonic() < deadline, f"nothing is committed after {RECOVERY_SECONDS_MAX} s"
            await asyncio.sleep(0.05)


def _table(results: list[Result], messages: int, brokers: int) -> Table:
    title = f"Seconds from the start of everything, {messages:,} durable messages of 1 KiB, {brokers} brokers"
    shown = Table(title=f"{title}: median (least to most)")
    passings = sorted({one.passed for one in results})
    for heading in ("passed", "trials", *(heading for heading, _ in _COLUMNS), "ratio", "CPU ratio"):
        shown.add_column(heading, justify="right")
    first = [one for one in results if one.passed == passings[0]]
    for passed in passings:
        ours = [one for one in results if one.passed == passed]
        shown.add_row(
            f"{passed}x",
            str(len(ours)),
            *(_spread([value(one) for one in ours]) for _, value in _COLUMNS),
            f"{_ratio(ours, first, lambda one: one.committed):.2f}",
            f"{_ratio(ours, first, lambda one: one.cpu):.2f}",
        )
    return shown


_COLUMNS: tuple[tuple[str, Callable[[Result], float]], ...] = (
    ("listening", lambda one: one.listening),
    ("loaded", lambda one: one.loaded),
    ("commit", lambda one: one.committed),
    ("in sync", lambda one: one.in_sync),
    ("CPU s", lambda one: one.cpu),
    ("disk MiB", lambda one: one.disk_mib),
    ("fdatasync ms", lambda one: one.sync_ms),
)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _ratio(some: list[Result], others: list[Result], value: Callable[[Result], float]) -> float:
    return statistics.median(map(value, some)) / statistics.median(map(value, others))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--passed", type=int, nargs="+", default=[0, 1, 3], help="times as many, before")
    parser.add_argument("--trials", type=int, default=3, help="recoveries of each, in turn")
    parser.add_argument("--brokers", type=int, default=3, help="each with a store")
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(
        lambda scratch: main(given.messages, given.passed, given.trials, given.brokers, scratch),
        given.directory,
    )
