"""Throughput: transactions of 1, 10 and 100 messages of 1 KiB from 1, 4 and 16 connections, on three brokers.

Each connection commits one transaction after the other through the SDK, into a queue of its own; all are in one set, so one
primary, two backups and three stores work for them. Everything shares this machine's processors, the client too.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.measuring import CpuMeter, SyncProbe, percentile
from lockstep.client.client import connect
from lockstep.core.commands import QueueOptions
from tests.integration.cluster import Deployment, deployed

BODY = b"x" * 1024
SET = "bench"


@dataclass(slots=True)
class Result:
    """One cell of the table."""

    size: int
    connections: int
    messages_per_second: float
    p50_ms: float
    p99_ms: float
    sync_ms: float
    cpu: dict[str, float]
    seconds: float


async def main(seconds: float, sizes: list[int], counts: list[int]) -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        async with deployed(Path(scratch), sets={SET: ["B1", "B2", "B3"]}) as deployment:
            results = []
            for size in sizes:
                for connections in counts:
                    result = await measure(deployment, Path(scratch), size, connections, seconds)
                    results.append(result)
                    console.print(
                        f"tx of {size:3}, {connections:2} connections: {result.messages_per_second:9,.0f} msgs/s"
                    )
    console.print(table(results))


async def measure(
    deployment: Deployment, scratch: Path, size: int, connections: int, seconds: float
) -> Result:
    """One combination: a warm-up, then `seconds` of it."""
    latencies: list[float] = []
    pids = {"client": os.getpid()}
    primary = await deployment.primary_of(SET)
    for name, local in deployment.cluster.brokers.items():
        role = "primary" if name == primary else "backup"
        pids[f"{role} {name}"] = local.broker.pid
        pids[f"store of {name}"] = local.store.pid
    meter = CpuMeter(pids)
    begin = time.monotonic() + 0.5
    meter_start = asyncio.get_running_loop().call_later(0.5, meter.start)
    async with SyncProbe(scratch) as probe:
        await asyncio.gather(
            *(
                _connection(deployment, f"q{number}", size, begin, begin + seconds, latencies)
                for number in range(connections)
            )
        )
    meter_start.cancel()
    return Result(
        size,
        connections,
        len(latencies) * size / seconds,
        1000 * percentile(latencies, 0.5),
        1000 * percentile(latencies, 0.99),
        probe.median_ms,
        meter.read(),
        seconds,
    )


async def _connection(
    deployment: Deployment, queue: str, size: int, begin: float, end: float, latencies: list[float]
) -> None:
    bodies = [BODY] * size
    async with contextlib.AsyncExitStack() as stack:
        client = await connect(deployment.addresses)
        stack.push_async_callback(client.close)
        session = await stack.enter_async_context(client.session())
        # A ring: memory stays the same however long it runs.
        options = QueueOptions(length_max=20_000, is_evicting=True)
        await session.declare_queue(queue, options, set_name=SET)
        while (start := time.monotonic()) < end:
            async with session.transaction() as transaction:
                await transaction.publish(queue, bodies)
            if start >= begin:
                latencies.append(time.monotonic() - start)


def table(results: list[Result]) -> Table:
    shown = Table(
        title="Committed through the SDK, three brokers and stores on one machine; processors in % of one core"
    )
    headings = ("tx of", "connections", "msgs/s", "p50 ms", "p99 ms", "sync ms", "CPU us/msg")
    for heading in (*headings, *(f"{name}, %" for name in results[0].cpu)):
        shown.add_column(heading, justify="right")
    for one in results:
        messages = max(1.0, one.messages_per_second * one.seconds)
        shown.add_row(
            str(one.size),
            str(one.connections),
            f"{one.messages_per_second:,.0f}",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            f"{one.sync_ms:.2f}",
            f"{1_000_000 * sum(one.cpu.values()) / messages:.0f}",
            *(f"{100 * used / one.seconds:.0f}" for used in one.cpu.values()),
        )
    return shown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 16])
    given = parser.parse_args()
    uvloop.run(main(given.seconds, given.sizes, given.connections))
