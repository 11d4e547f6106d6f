"""Restarting: a set with millions of messages of 100 bytes. One backup is restarted, then the primary, then everything at once,
by SIGKILL with their stores; a client publishes all the time.

Law: between two publishes that come through lie at most 2 s while one broker is restarted: many messages take no lease away, in
one queue or in thousands. `make bench-restarting`; `python -m bench.restarting --queues 10000`.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import load
from bench.scratch import add_directory, run_on_disk
from lockstep.core.errors import LockstepError
from tests.integration.backlog import fill
from tests.integration.cluster import Deployment
from tests.integration.log_tail import LogTail

SET, QUEUE, PROBE = "bench", "deep", "probe"
GAP_SECONDS_MAX = 2.0
IN_SYNC_SECONDS_MAX = 900.0
PROBE_SECONDS = 0.02
"""Between two publishes."""
_EVENTS = ("loaded", "subscribed", "memory_whole", "promoted", "serving", "lease_lost", "whole_snapshot")


@dataclass(slots=True)
class Probe:
    """Publishes all the time, and knows when it got through; from `probing`."""

    passed: list[float] = field(default_factory=list)
    """When each publish was confirmed, in Unix time."""
    failures: int = 0

    def longest_gap(self, begin: float, end: float) -> tuple[float, float]:
        """(seconds, when it began, from `begin` on) of the longest time without one."""
        times = [begin, *(each for each in self.passed if begin < each < end), end]
        gap, at = max((after - before, before) for before, after in pairwise(times))
        return gap, at - begin


@contextlib.asynccontextmanager
async def probing(deployment: Deployment) -> AsyncIterator[Probe]:
    probe = Probe()
    task = asyncio.create_task(_probe(deployment, probe))
    try:
        yield probe
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _probe(deployment: Deployment, probe: Probe) -> None:
    while True:
        try:
            async with deployment.client() as client, client.session() as session:
                while True:
                    await session.publish(PROBE, b"x")
                    probe.passed.append(time.time())
                    await asyncio.sleep(PROBE_SECONDS)
        except LockstepError:
            probe.failures += 1
            await asyncio.sleep(PROBE_SECONDS)


async def main(messages: int, batch: int, queues: int, scratch: Path) -> int:
    """Returns the exit status: 0 if no gap was too long while one broker was restarted."""
    console = Console()
    shown = Table(
        title=f"{messages:,} messages of 100 bytes in {queues:,} queues, published {batch} at a time"
    )
    for heading in (
        "restarted",
        "longest gap",
        "after",
        "in sync again",
        "leases lost",
        "promotions",
        "load",
    ):
        shown.add_column(heading, justify="left" if heading == "restarted" else "right")
    gaps: list[float] = []
    async with deployed(scratch, sets={SET: ["B1", "B2", "B3"]}) as (deployment, _):
        begin = time.monotonic()
        async with deployment.client() as client, client.session() as session:
            await session.declare_queue(PROBE, set_name=SET)
            names = [f"{QUEUE}-{number}" for number in range(queues)]
            await fill(session, SET, names, [b"p" * 100] * batch, messages)
        console.print(f"filled in {time.monotonic() - begin:.0f} s, load {load():.1f}")
        async with probing(deployment) as probe:
            await asyncio.sleep(2)
            for what in ("a backup", "the primary", "all"):
                primary = await deployment.primary_of(SET)
                names = sorted(deployment.cluster.brokers)
                backup = next(name for name in names if name != primary)
                victims = {"a backup": [backup], "the primary": [primary], "all": names}[what]
                row, gap = await _restart(console, deployment, probe, victims)
                shown.add_row(what, *row)
                if what != "all":
                    gaps.append(gap)
    console.print(shown)
    return 0 if max(gaps) <= GAP_SECONDS_MAX else 1


async def _restart(
    console: Console, deployment: Deployment, probe: Probe, victims: Sequence[str]
) -> tuple[list[str], float]:
    brokers = deployment.cluster.brokers
    tails = {name: LogTail(local.broker.log) for name, local in brokers.items()}
    begin = time.time()
    await deployment.kill_and_start(victims)
    await deployment.until_in_sync(3, seconds=IN_SYNC_SECONDS_MAX)
    in_sync = time.time() - begin
    await asyncio.sleep(5)
    events = sorted((at - begin, name, event) for name, tail in tails.items() for at, event in tail.events())
    for at, name, event in events:
        if event.startswith(_EVENTS):
            console.print(f"  {at:7.2f} s {name} {event}", highlight=False)
    gap, after = probe.longest_gap(begin, time.time())
    counts = [
        str(sum(event.startswith(kind) for _, _, event in events)) for kind in ("lease_lost", "promoted")
    ]
    return [f"{gap:.2f} s", f"{after:.1f} s", f"{in_sync:.1f} s", *counts, f"{load():.1f}"], gap


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--batch", type=int, default=500, help="messages in one publish")
    parser.add_argument("--queues", type=int, default=1)
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(lambda scratch: main(given.messages, given.batch, given.queues, scratch), given.directory)
