"""Joining: how long a backup takes to be in sync with a queue of 100,000 durable messages of 1 KiB.

Law: with and without a transaction left open, which holds messages of that queue and has published, by turns in one run. Bar:
the ratio of the two medians is at most 1.1. Once for a broker that was removed and comes back with an empty disk (a whole
snapshot), once for one that was killed and comes back with its own (a memory snapshot). `make bench-joining`.
"""

import argparse
import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import CpuMeter, SyncProbe, load
from bench.memory import fill
from bench.returning import STEPS, Returned, come_back, remove
from bench.scratch import add_directory, run_on_disk
from tests.integration.cluster import Deployment

SET, QUEUE = "bench", "deep"
OPEN_MESSAGES = 1000
"""Accepted, and published, by the transaction that is left open."""
RATIO_MAX = 1.1
_DISKS = {True: "empty disk", False: "old disk"}

_Case = tuple[bool, bool]
"""Whether the disk is lost, and whether a transaction is open."""


async def main(depth: int, rounds: int, scratch: Path) -> int:
    """Returns the exit status: 0 if the bar is cleared."""
    console = Console()
    found: dict[_Case, list[Returned]] = {case: [] for case in product((True, False), (False, True))}
    async with deployed(scratch, sets={SET: ["B1", "B2", "B3"]}) as (deployment, _):
        await fill(deployment, SET, QUEUE, depth)
        primary = await deployment.primary_of(SET)
        newcomer = next(name for name in deployment.cluster.brokers if name != primary)
        for number in range(rounds):
            # Whichever comes second finds a warmer machine: they take turns.
            for is_open in (False, True) if number % 2 == 0 else (True, False):
                for is_disk_lost in (True, False):
                    returned = await _trial(
                        console, deployment, primary, newcomer, is_disk_lost=is_disk_lost, is_open=is_open
                    )
                    found[is_disk_lost, is_open].append(returned)
    console.print(_table(found, depth))
    return 0 if _ratio(found, is_disk_lost=True) <= RATIO_MAX else 1


async def _trial(
    console: Console,
    deployment: Deployment,
    primary: str,
    newcomer: str,
    *,
    is_disk_lost: bool,
    is_open: bool,
) -> Returned:
    await remove(deployment, newcomer, 2, is_disk_lost=is_disk_lost)
    async with contextlib.AsyncExitStack() as stack:
        if is_open:
            await stack.enter_async_context(_open_transaction(deployment))
        meter = CpuMeter({"primary": deployment[primary].broker.pid})
        async with SyncProbe(deployment.cluster.directory) as probe:
            meter.start()
            returned = await come_back(deployment, newcomer, primary)
    console.print(
        f"{_DISKS[is_disk_lost]:10}, transaction {'open' if is_open else 'none'}: {returned.seconds:6.2f} s;"
        f" {_steps(returned)}; primary's CPU {meter.read()['primary']:.2f} s, fdatasync {probe.median_ms:.2f} ms,"
        f" load {load():.1f}"
    )
    return returned


def _steps(returned: Returned) -> str:
    return ", ".join(f"{step} {returned.steps[step]:.2f}" for step in STEPS if step in returned.steps)


@contextlib.asynccontextmanager
async def _open_transaction(deployment: Deployment) -> AsyncIterator[None]:
    """It has accepted messages of the deep queue and published there, and stays open inside; then it is rolled back."""
    async with deployment.client() as client, client.session() as session:
        transaction = session.transaction(timeout_ms=600_000)
        async with await session.consume(QUEUE, credit=OPEN_MESSAGES) as consumer:
            async with asyncio.timeout(30):
                held = [await anext(consumer) for _ in range(OPEN_MESSAGES)]
            await transaction.accept(*held)
            await (await transaction.publish(QUEUE, [b"x" * 1024] * OPEN_MESSAGES))
            yield
            await transaction.rollback()


def _ratio(found: dict[_Case, list[Returned]], *, is_disk_lost: bool) -> float:
    return _median(found[is_disk_lost, True]) / _median(found[is_disk_lost, False])


def _median(returns: list[Returned]) -> float:
    return statistics.median(returned.seconds for returned in returns)


def _table(found: dict[_Case, list[Returned]], depth: int) -> Table:
    shown = Table(title=f"Seconds from a broker's start to being in sync, {depth:,} messages deep")
    for heading in ("disk", "without transaction", "with one open", "ratio", "bar"):
        shown.add_column(heading, justify="left" if heading == "disk" else "right")
    for is_disk_lost, disk in _DISKS.items():
        shown.add_row(
            disk,
            f"{_median(found[is_disk_lost, False]):.2f}",
            f"{_median(found[is_disk_lost, True]):.2f}",
            f"{_ratio(found, is_disk_lost=is_disk_lost):.2f}",
            f"{RATIO_MAX}" if is_disk_lost else "",
        )
    return shown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=4, help="of each: empty and old disk, with and without")
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(lambda scratch: main(given.depth, given.rounds, scratch), given.directory)
