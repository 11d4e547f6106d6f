"""Memory: what a broker process holds with 100,000 durable messages of 1 KiB. Bar: at most 400 MiB resident.

Law: at its peak as well as afterwards, and however it came to hold them: as primary, as a backup that followed, as a newcomer
with an empty disk that got a whole snapshot, as a broker that was killed and loaded them from its own disk. With `--resident-mib`
the brokers keep only so much content in memory; then there may be many more messages, and all of them are read back at the end.
"""

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import SyncProbe, load, peak_resident_mib
from bench.processes import resident_mib
from bench.returning import come_back, remove
from bench.scratch import add_directory, run_on_disk
from lockstep.core.commands import QueueOptions
from tests.integration.cluster import Deployment

SET = "bench"
BATCH = 500
UNCONFIRMED_BATCHES = 100
"""So that a client with a million messages does not hold all of them."""
BAR_MIB = 400
SETTLING_SECONDS = 1.0
"""After which what was needed only on the way is given back."""

_Row = tuple[str, float, float]
"""What a broker is, its resident MiB at the peak and afterwards."""


async def main(messages: int, body_bytes: int, limit_mib: int, scratch: Path) -> int:
    """Returns the exit status: 0 if the bar is cleared."""
    console = Console()
    arguments = ("--resident-body-bytes", str(limit_mib << 20)) if limit_mib else ()
    async with (
        deployed(scratch, sets={SET: ["B1", "B2", "B3"]}, broker_arguments=arguments) as (deployment, _),
        SyncProbe(scratch) as probe,
    ):
        primary, newcomer, restarted = await _roles(deployment)
        rows = [_row(deployment, primary, "empty")]
        start = time.monotonic()
        await fill(deployment, SET, "deep", messages, body_bytes)
        rate = messages / (time.monotonic() - start)
        await asyncio.sleep(SETTLING_SECONDS)
        rows += [_row(deployment, primary, "primary"), _row(deployment, newcomer, "backup that followed")]
        stores = [f"{resident_mib(one.store.pid):.0f}" for one in deployment.cluster.brokers.values()]
        for name, is_disk_lost, what in (
            (newcomer, True, "newcomer by whole snapshot"),
            (restarted, False, "restarted on its own disk"),
        ):
            await remove(deployment, name, 2, is_disk_lost=is_disk_lost)
            await come_back(deployment, name, primary)
            await asyncio.sleep(SETTLING_SECONDS)
            rows.append(_row(deployment, name, what))
        rows.append(_row(deployment, primary, "primary that sent a whole snapshot"))
        start = time.monotonic()
        await drain(deployment, "deep", messages)
        drained = messages / (time.monotonic() - start)
        rows.append(_row(deployment, primary, "primary that delivered everything"))
        sync_ms = probe.median_ms
    shown = Table(title=f"Resident MiB of a broker with {messages:,} durable messages of {body_bytes} bytes")
    for heading in ("broker", "peak", "after"):
        shown.add_column(heading, justify="left" if heading == "broker" else "right")
    for what, peak, after in rows:
        shown.add_row(what, f"{peak:.0f}", f"{after:.0f}")
    console.print(shown)
    console.print(
        f"stores after filling: {', '.join(stores)} MiB; filled at {rate:,.0f} msgs/s, drained at {drained:,.0f}"
    )
    worst = max(peak for _, peak, _ in rows)
    console.print(
        f"bar: {BAR_MIB} MiB; worst peak: {worst:.0f} MiB; fdatasync {sync_ms:.2f} ms, load {load():.1f}"
    )
    return 0 if worst <= BAR_MIB else 1


async def _roles(deployment: Deployment) -> tuple[str, str, str]:
    primary = await deployment.primary_of(SET)
    newcomer, restarted = (name for name in deployment.cluster.brokers if name != primary)
    return primary, newcomer, restarted


def _row(deployment: Deployment, name: str, what: str) -> _Row:
    pid = deployment[name].broker.pid
    return what, peak_resident_mib(pid), resident_mib(pid)


async def fill(
    deployment: Deployment, set_name: str, queue: str, messages: int, body_bytes: int = 1024
) -> None:
    """Publishes so many durable messages into a queue, each different."""
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(queue, QueueOptions(), set_name=set_name)
        confirmations: deque[Awaitable[object]] = deque()
        for first in range(0, messages, BATCH):
            bodies = [
                str(number).encode().ljust(body_bytes, b".")
                for number in range(first, min(first + BATCH, messages))
            ]
            confirmations.append(await session.publish_soon(queue, bodies))
            if len(confirmations) == UNCONFIRMED_BATCHES:
                await confirmations.popleft()
        await asyncio.gather(*confirmations)


async def drain(deployment: Deployment, queue: str, messages: int) -> None:
    """Takes and accepts so many messages, in the order in which `fill` published them."""
    async with deployment.client() as client, client.session() as session:
        consumer = await session.consume(queue, credit=2 * BATCH)
        for number in range(messages):
            message = await consumer.next(30)
            assert message is not None and message.body.split(b".")[0] == str(number).encode(), number
            accepted = message.accept()
        await accepted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--resident-mib", type=int, default=0, help="content in memory; 0: the default")
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(
        lambda scratch: main(given.messages, given.body_bytes, given.resident_mib, scratch), given.directory
    )
