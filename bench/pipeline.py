"""The pipeline: events a second of 1 KiB into Spark, and what a reader at full speed costs the primary.

First everything that was committed is read by the client alone, then by Spark (`local[2]`) into a sink that does nothing, and
into Parquet, several times: the first is cold. Then messages are committed for some seconds without a reader, and again while
Spark reads over and over; at a set rate, since a primary with less to do uses more CPU for each message. Backups serve the
reader; all share this machine's processors, so the primary's own CPU per message is what to look at. `make bench-pipeline`, or
`python -m bench.pipeline --events 200000`.
"""

import argparse
import asyncio
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench.deploying import deployed
from bench.measuring import CpuMeter, SyncProbe, load
from bench.processes import all_processes, family_seconds
from bench.scratch import add_directory, run_on_disk
from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient, Start
from services.pipeline.columns import as_record_batch
from services.pipeline.session import make_session
from tests.integration.cluster import Deployment

BODY = b"x" * 1024
SET, QUEUE, GROUP = "bench", "q", "bench"
TRANSACTION = 100
CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Commits:
    """What was committed in some seconds."""

    messages_per_second: float
    primary_cpu_us: float
    """The primary's own, for each message."""
    sync_ms: float


async def main(events: int, rounds: int, seconds: float, rate: float, scratch: Path) -> None:
    console = Console(width=140)
    async with deployed(scratch / "cluster", sets={SET: ["B1", "B2", "B3"]}) as (deployment, _):
        addresses = deployment.addresses
        await asyncio.to_thread(_open, addresses)
        await _fill(deployment, events)
        console.print(f"{events:,} events of 1 KiB in transactions of {TRANSACTION}; load {load():.1f}")
        count, speed = await asyncio.to_thread(_read_alone, addresses)
        console.print(f"client alone, into Arrow: {speed:9,.0f} events/s ({count:,})")
        began = time.monotonic()
        spark = await asyncio.to_thread(make_session, "local[2]", "bench")
        console.print(f"Spark session: {time.monotonic() - began:.1f} s")
        try:
            for sink in ("noop", "parquet"):
                for number in range(rounds):
                    before = _spark_cpu()
                    speed = await asyncio.to_thread(_read_once, spark, addresses, sink, scratch, count)
                    cpu = 1e6 * (_spark_cpu() - before) / count
                    console.print(
                        f"{sink:>7}, round {number + 1}: {speed:9,.0f} events/s, {cpu:5.1f} us CPU of Spark"
                        f" an event; load {load():.1f}"
                    )
            await _show_cost(console, deployment, spark, scratch, seconds, rate)
        finally:
            await asyncio.to_thread(spark.stop)


async def _show_cost(
    console: Console, deployment: Deployment, spark: SparkSession, scratch: Path, seconds: float, rate: float
) -> None:
    quiet = await _commit(deployment, scratch, seconds, rate)
    stopping = threading.Event()
    reading = asyncio.create_task(asyncio.to_thread(_read_on_and_on, spark, deployment.addresses, stopping))
    await asyncio.sleep(1)
    busy = await _commit(deployment, scratch, seconds, rate)
    stopping.set()
    rates = await reading
    for name, one in (("nobody reads", quiet), ("Spark reads", busy)):
        console.print(
            f"{name:>12}: {one.messages_per_second:9,.0f} messages/s committed, primary {one.primary_cpu_us:6.1f}"
            f" us CPU a message, sync {one.sync_ms:.2f} ms"
        )
    change = 100 * (busy.primary_cpu_us / quiet.primary_cpu_us - 1)
    console.print(
        f"the primary's CPU per message: {change:+.1f} %; Spark read {rates:,.0f} events/s beside it"
    )


def _spark_cpu() -> float:
    """Processor seconds of the JVM and the Python workers under it: what other load on the machine does not change."""
    processes = all_processes()
    machines = [pid for pid, one in processes.items() if one.parent == os.getpid() and _is_java(pid)]
    return sum(family_seconds(pid, processes) for pid in machines)


def _is_java(pid: int) -> bool:
    return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]


def _open(addresses: list[str]) -> None:
    with EventsClient(addresses) as client:
        client.open_subscription(GROUP, Start.START_LATEST)


async def _fill(deployment: Deployment, events: int) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(QUEUE, set_name=SET)
        for _ in range(events // TRANSACTION):
            async with session.transaction() as transaction:
                await transaction.publish(QUEUE, [BODY] * TRANSACTION)


def _read_alone(addresses: list[str]) -> tuple[int, float]:
    """How many events there are, and how fast they become Arrow record batches in this process."""
    with EventsClient(addresses) as client:
        (planned,) = client.plan(GROUP, {}).ranges
        began, count = time.monotonic(), 0
        start, end = EventOffset.of(planned.start), EventOffset.of(planned.to)
        for batch in client.read(SET, start, end, brokers=planned.brokers):
            count += as_record_batch(batch).num_rows
    return count, count / (time.monotonic() - began)


def _frame(spark: SparkSession, addresses: list[str]) -> DataFrame:
    return spark.read.format("lockstep").options(brokers=",".join(addresses), group=GROUP).load()


def _read_once(spark: SparkSession, addresses: list[str], sink: str, scratch: Path, count: int) -> float:
    began = time.monotonic()
    writer = _frame(spark, addresses).write.format(sink).mode("overwrite")
    writer.save(str(scratch / "out") if sink == "parquet" else None)
    return count / (time.monotonic() - began)


def _read_on_and_on(spark: SparkSession, addresses: list[str], stopping: threading.Event) -> float:
    """Events a second."""
    began, count = time.monotonic(), 0
    while not stopping.is_set():
        count += _frame(spark, addresses).count()
    return count / (time.monotonic() - began)


async def _commit(deployment: Deployment, scratch: Path, seconds: float, rate: float) -> Commits:
    primary = await deployment.primary_of(SET)
    meter = CpuMeter({"primary": deployment[primary].broker.pid})
    end = time.monotonic() + seconds
    async with SyncProbe(scratch) as probe:
        meter.start()
        began = time.monotonic()
        counts = await asyncio.gather(*(_connection(deployment, end, rate) for _ in range(CONNECTIONS)))
        used, took = meter.read()["primary"], time.monotonic() - began
    return Commits(sum(counts) / took, 1e6 * used / max(1, sum(counts)), probe.median_ms)


async def _connection(deployment: Deployment, end: float, rate: float) -> int:
    """`rate`: messages a second, of all connections."""
    count = 0
    due = time.monotonic()
    async with deployment.client() as client, client.session() as session:
        while time.monotonic() < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += CONNECTIONS * TRANSACTION / rate
            async with session.transaction() as transaction:
                await transaction.publish(QUEUE, [BODY] * TRANSACTION)
            count += TRANSACTION
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages a second while others read")
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(
        lambda scratch: main(given.events, given.rounds, given.seconds, given.rate, scratch), given.directory
    )
