"""AMQP: messages of 1 KiB through one proxy process, in and out, one by one and in transactions.

A client on Proton's C engine (bench/amqp_client.cpp, compiled here; Debian's libqpid-proton11-dev and g++) sends to or receives
from one queue of one resource set with one broker, over one connection. Sent is counted when it is accepted, that is durable;
received when it is settled; in transactions when their commit is. Everything shares this machine's processors, so the rate says
less than the processor time of the proxy for each message.
"""

import argparse
import asyncio
import os
import resource
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.measuring import CpuMeter, SyncProbe, load
from lockstep.client.client import connect
from lockstep.core.commands import QueueOptions
from lockstep.runtime.local_cluster import LocalCluster
from tests.integration.cluster import Deployment

SET = "bench"
SOURCE = Path(__file__).with_name("amqp_client.cpp")
LIBRARY = "qpid-proton"
SECONDS_MAX = 300.0
PROFILER = Path(sys.executable).with_name("py-spy")


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: `transaction` messages in each, 0 without."""

    direction: str
    transaction: int

    def __str__(self) -> str:
        words = {"send": "in", "receive": "out"}[self.direction]
        return f"{words}, tx of {self.transaction}" if self.transaction else words


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; times of processors in microseconds for each message."""

    case: Case
    messages_per_second: float
    used: dict[str, float]
    sync_ms: float


SMALL, LARGE = 10, 100
CASES = [Case(direction, size) for direction in ("send", "receive") for size in (0, LARGE, SMALL)]


async def main(messages: int, body_bytes: int, brokers: int, profiles: Path | None) -> None:
    console = Console()
    if shutil.which("g++") is None:
        raise SystemExit("bench.amqp needs g++ and libqpid-proton11-dev (Debian's names)")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        program = await compiled(Path(scratch))
        cluster = LocalCluster(Path(scratch) / "cluster", brokers=brokers, proxies=1, first_port=0)
        async with cluster:
            client = await connect(cluster.addresses)
            await client.administration.create_set(SET, list(cluster.brokers))
            await client.close()
            await Deployment(cluster).until_in_sync(brokers)
            results = []
            for case in CASES:
                # Small transactions take their time.
                count = messages // 10 if case.transaction == SMALL else messages
                results.append(
                    await measure(cluster, Path(scratch), program, case, count, body_bytes, profiles)
                )
                console.print(f"{case}: {results[-1].messages_per_second:,.0f} msgs/s")
    console.print(table(results, brokers))
    console.print(f"load of the machine at the end: {load():.1f}, on {os.cpu_count()} processors")


async def compiled(folder: Path) -> Path:
    """The client's program. Raises `SystemExit` if it cannot be compiled."""
    program = folder / "amqp_client"
    command = ("g++", "-O2", "-std=c++17", "-o", str(program), str(SOURCE), f"-l{LIBRARY}")
    compiling = await asyncio.create_subprocess_exec(*command)
    if await compiling.wait() != 0:
        raise SystemExit(
            "bench.amqp: the client was not compiled; libqpid-proton11-dev is Debian's name of its library"
        )
    return program


async def measure(
    cluster: LocalCluster,
    scratch: Path,
    program: Path,
    case: Case,
    messages: int,
    body_bytes: int,
    profiles: Path | None,
) -> Result:
    """One case, with a queue of its own; what is to be received was sent before, unmeasured."""
    port = cluster.proxy_addresses[0].rpartition(":")[2]
    queue = f"{case.direction}-{case.transaction}"
    client = await connect(cluster.addresses)
    async with client.session() as session:
        await session.declare_queue(queue, QueueOptions(), set_name=SET)
    await client.close()

    def command(direction: str, count: int, transaction: int) -> tuple[str, ...]:
        return (str(program), port, direction, queue, str(count), str(body_bytes), str(transaction))

    warm_up = messages // 10
    await run(*command("send", warm_up, case.transaction))
    if case.direction == "send":
        await run(*command("receive", warm_up, 0))
    else:
        await run(*command("receive", warm_up, case.transaction))
        await run(*command("send", messages, 0))
    proxy = next(iter(cluster.proxies.values())).pid
    pids = {"proxy": proxy}
    for name, local in cluster.brokers.items():
        pids[f"broker {name}"], pids[f"store {name}"] = local.broker.pid, local.store.pid
    meter = CpuMeter(pids)
    async with SyncProbe(scratch) as probe:
        profiler = await profiled(proxy, case, profiles)
        clients_before = children_seconds()
        meter.start()
        seconds = float(await run(*command(case.direction, messages, case.transaction)))
        used = {**meter.read(), "client": children_seconds() - clients_before}
        if profiler is not None:
            # As Ctrl-C does: then it writes what it has.
            profiler.send_signal(signal.SIGINT)
            await profiler.wait()
    async with (client := await connect(cluster.addresses)).session() as session:
        await session.delete_queue(queue)
    await client.close()
    each = {name: 1e6 * spent / messages for name, spent in used.items()}
    return Result(case, messages / seconds, each, probe.median_ms)


async def run(*command: str) -> str:
    """What a program prints. Raises `SystemExit` if it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise SystemExit(f"bench.amqp: {' '.join(command)} ended with {process.returncode}")
    return output.decode()


def children_seconds() -> float:
    """Processor time of all children that have exited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def profiled(pid: int, case: Case, folder: Path | None) -> asyncio.subprocess.Process | None:
    """A profiler of the proxy, if somebody wants its samples: one file of folded stacks for each case."""
    if folder is None:
        return None
    file = folder / f"{case.direction}-{case.transaction}.folded"
    options = ("--rate", "500", "--duration", "600", "--format", "raw", "--nonblocking")
    process = await asyncio.create_subprocess_exec(
        *(str(PROFILER), "record", "--pid", str(pid), "--output", str(file), *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await asyncio.sleep(1.0)
    return process


def table(results: list[Result], brokers: int) -> Table:
    shown = Table(
        title=f"Through one proxy, {brokers} brokers; processor time in us for each message of 1 KiB"
    )
    for heading in ("case", "msgs/s", *results[0].used, "sync ms"):
        shown.add_column(heading, justify="left" if heading == "case" else "right")
    for one in results:
        times = (f"{spent:.1f}" for spent in one.used.values())
        shown.add_row(str(one.case), f"{one.messages_per_second:,.0f}", *times, f"{one.sync_ms:.2f}")
    return shown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="in each case")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument(
        "--profiles", type=Path, help="a folder for py-spy's samples of the proxy, which cost time"
    )
    given = parser.parse_args()
    uvloop.run(main(given.messages, given.body_bytes, given.brokers, given.profiles))
