"""Failover: from the harm done to the primary to the first transaction committed by a client that reconnects by itself.

Goals: SIGKILL (the supervisor sees the process exit and revokes its lease): median at most 1 s over 10 trials; SIGSTOP: lease +
0.5 s. How long brokers take to come back into the in-sync set: `bench/joining.py`.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from lockstep.client.client import Client
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import LockstepError
from tests.integration.cluster import Deployment, deployed

SET = "bench"


async def main(kills: int, stalls: int) -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        async with deployed(Path(scratch), sets={SET: ["B1", "B2", "B3"]}) as deployment:
            killed = [await trial(deployment, is_kill=True) for _ in range(kills)]
            console.print("SIGKILL:", " ".join(f"{seconds:.2f}" for seconds in killed), "s")
            stalled = [await trial(deployment, is_kill=False) for _ in range(stalls)]
            console.print("SIGSTOP:", " ".join(f"{seconds:.2f}" for seconds in stalled), "s")
    console.print(_table(killed, stalled))


async def trial(deployment: Deployment, *, is_kill: bool) -> float:
    """Harms the primary under load; returns seconds to the first commit of a transaction begun after that."""
    primary = await deployment.primary_of(SET)
    local = deployment[primary]
    async with deployment.client() as client, _committing(client) as commits:
        await _next(commits, time.monotonic())
        if is_kill:
            harmed_at = time.monotonic()
            killing = asyncio.create_task(local.broker.kill())
        else:
            local.broker.stall()
            harmed_at = time.monotonic()
            killing = None
        seconds = await _next(commits, harmed_at) - harmed_at
        if killing is not None:
            await killing
            await deployment.cluster.start_broker(primary)
        else:
            local.broker.resume()
    await deployment.until_in_sync(3)
    return seconds


@contextlib.asynccontextmanager
async def _committing(client: Client) -> AsyncIterator["asyncio.Queue[tuple[float, float]]"]:
    """Commits all the time; the queue gets (begun, committed) of each transaction."""
    commits: asyncio.Queue[tuple[float, float]] = asyncio.Queue()

    async def run() -> None:
        async with client.session() as session:
            options = QueueOptions(length_max=1000, is_evicting=True)
            await session.declare_queue("failover", options, set_name=SET)
            while True:
                begun = time.monotonic()
                try:
                    async with session.transaction() as transaction:
                        await transaction.publish("failover", [b"x" * 1024] * 10)
                except LockstepError:
                    continue
                commits.put_nowait((begun, time.monotonic()))

    task = asyncio.create_task(run())
    try:
        yield commits
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _next(commits: "asyncio.Queue[tuple[float, float]]", since: float) -> float:
    """When the first transaction begun after `since` was committed."""
    async with asyncio.timeout(30):
        while True:
            begun, committed = await commits.get()
            if begun >= since:
                return committed


def _table(killed: list[float], stalled: list[float]) -> Table:
    shown = Table(title="Failover on one machine")
    for heading in ("what", "median s", "worst s", "goal"):
        shown.add_column(heading, justify="left" if heading in ("what", "goal") else "right")
    for what, values, goal in (
        (f"SIGKILL of the primary, {len(killed)} trials", killed, "1 s"),
        (f"SIGSTOP of the primary, {len(stalled)} trials", stalled, "lease (3 s) + 0.5 s"),
    ):
        if values:
            shown.add_row(what, f"{statistics.median(values):.2f}", f"{max(values):.2f}", goal)
    return shown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--stalls", type=int, default=3)
    given = parser.parse_args()
    uvloop.run(main(given.kills, given.stalls))
