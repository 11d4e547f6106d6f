"""Memory: what a broker process holds with 100,000 durable messages of 1 KiB. Bar: at most 400 MiB resident."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.measuring import resident_mib
from lockstep.core.commands import QueueOptions
from tests.integration.cluster import Deployment, deployed

SET = "bench"
BATCH = 500
BAR_MIB = 400


async def main(messages: int, body_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        async with deployed(Path(scratch), sets={SET: ["B1", "B2", "B3"]}) as deployment:
            empty = _resident(deployment)
            start = time.monotonic()
            await fill(deployment, SET, "deep", messages, body_bytes)
            seconds = time.monotonic() - start
            await asyncio.sleep(1.0)
            full = _resident(deployment)
    shown = Table(title=f"Resident MiB with {messages:,} durable messages of {body_bytes} bytes")
    for heading in ("process", "empty", "full"):
        shown.add_column(heading, justify="left" if heading == "process" else "right")
    for name, value in full.items():
        shown.add_row(name, f"{empty[name]:.0f}", f"{value:.0f}")
    console = Console()
    console.print(shown)
    console.print(f"filled at {messages / seconds:,.0f} msgs/s")
    worst = max(value for name, value in full.items() if name.startswith("broker"))
    console.print(f"bar: {BAR_MIB} MiB; worst broker: {worst:.0f} MiB")


async def fill(
    deployment: Deployment, set_name: str, queue: str, messages: int, body_bytes: int = 1024
) -> None:
    """Publishes so many durable messages into a queue, each different."""
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(queue, QueueOptions(), set_name=set_name)
        confirmations = []
        for first in range(0, messages, BATCH):
            bodies = [
                str(number).encode().ljust(body_bytes, b".")
                for number in range(first, min(first + BATCH, messages))
            ]
            confirmations.append(await session.publish_soon(queue, bodies))
        await asyncio.gather(*confirmations)


def _resident(deployment: Deployment) -> dict[str, float]:
    found = {}
    for name, local in deployment.cluster.brokers.items():
        found[f"broker {name}"] = resident_mib(local.broker.pid)
        found[f"store of {name}"] = resident_mib(local.store.pid)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    given = parser.parse_args()
    uvloop.run(main(given.messages, given.body_bytes))
