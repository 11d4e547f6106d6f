"""Load programs as child processes: started together, set off together, measured from outside while they work.

Law: what is measured is the middle: from the end of the warm-up to the end of the measured seconds, or of the work where that is
counted. What a program needs beforehand and afterwards is nobody's.
"""

import asyncio
import contextlib
import os
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.environment import OtherLoad
from bench.load import Done
from bench.measuring import CpuMeter, SyncProbe, percentile
from bench.processes import family_resident_mib
from bench.processor_speed import SpeedProbe
from bench.results import Measurement, Used
from lockstep.runtime.process import MALLOC_ENVIRONMENT

LINE_BYTES_MAX = 1 << 28
"""Of the last line of a load program, with all its latencies."""
READY_SECONDS_MAX = 600.0
"""For one that fills a queue with a million messages first."""
END_SECONDS_MAX = 120.0
"""Beyond the measured seconds."""
SETTLED_CORES, SETTLED_SECONDS, SETTLING_SECONDS_MAX = 0.3, 0.3, 60.0
"""The servers are done with what was prepared when all of them together use so little for so long; or after so long."""
SETTLED_LOOKS = 8
"""So many times in a row nothing is done: longer than a store waits until it consolidates what came last."""


class LoadFailed(Exception):
    """A load program did not do what it was to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a case is measured on a system."""

    system: str
    path: str
    workload: str
    title: str
    commands: Sequence[Sequence[str]]
    """Of the load programs."""
    pids: Mapping[str, int]
    """Of the servers, by role."""
    warm_seconds: float
    seconds: float


async def measure(plan: Plan, directory: Path) -> Measurement:
    """Runs the programs of a plan; `directory` is on the disk that the servers write to. Raises `LoadFailed`."""
    async with contextlib.AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(_started(command)) for command in plan.commands]
        await asyncio.gather(*(_line(program, READY_SECONDS_MAX) for program in programs))
        await settled(plan.pids)
        clients = {
            "client" if len(programs) == 1 else f"client {number + 1}": program.pid
            for number, program in enumerate(programs)
        }
        meter, others = CpuMeter({**plan.pids, **clients}), OtherLoad()
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(b"go\n")
        await asyncio.sleep(plan.warm_seconds)
        async with SyncProbe(directory) as probe, SpeedProbe() as speed:
            begin = asyncio.get_running_loop().time()
            others.start()
            meter.start()
            ends = [
                asyncio.ensure_future(_line(program, plan.seconds + END_SECONDS_MAX)) for program in programs
            ]
            done, _ = await asyncio.wait(ends, timeout=plan.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for end in done:
                end.result()  # Raises what has failed, before its process is asked what it used.
            used, other_cores = meter.read(), others.cores()
            took = asyncio.get_running_loop().time() - begin
            memory = {name: family_resident_mib(pid) for name, pid in {**plan.pids, **clients}.items()}
        results = [msgspec.json.decode(line, type=Done) for line in await asyncio.gather(*ends)]
        for program in programs:
            assert program.stdin is not None
            program.stdin.close()
        await asyncio.gather(*(program.wait() for program in programs))
    return _measurement(
        plan,
        results,
        clients,
        _Seen(used, memory, took, other_cores, probe.median_ms, speed.slowdown),
    )


async def settled(pids: Mapping[str, int]) -> None:
    """Returns when the servers are done with what the load programs prepared, and those before them left: it is nobody's."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLING_SECONDS_MAX
    quiet = 0
    while quiet < SETTLED_LOOKS and loop.time() < deadline:
        meter, begin = CpuMeter(pids), loop.time()
        meter.start()
        await asyncio.sleep(SETTLED_SECONDS)
        used = sum(meter.read().values()) / (loop.time() - begin)
        quiet = quiet + 1 if used < SETTLED_CORES else 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of the processes, in the measured seconds."""

    cpu_seconds: Mapping[str, float]
    resident_mib: Mapping[str, float]
    seconds: float
    other_cores: float
    sync_ms: float
    slowdown: float


def _measurement(plan: Plan, done: Sequence[Done], clients: Mapping[str, int], seen: _Seen) -> Measurement:
    seconds = statistics.mean(one.seconds for one in done)
    operations = sum(one.operations for one in done) / seconds
    messages = sum(one.messages for one in done) / seconds
    latencies = sorted(latency for one in done for latency in one.latencies_us)

    def used(name: str) -> Used:
        cores = seen.cpu_seconds[name] / seen.seconds
        each = 1e6 * cores / messages if messages else 0.0
        return Used(round(cores, 3), round(seen.resident_mib[name], 1), round(each, 1))

    return Measurement(
        system=plan.system,
        path=plan.path,
        workload=plan.workload,
        case=plan.title,
        operations_per_second=round(operations, 1),
        messages_per_second=round(messages, 1),
        p50_ms=percentile(latencies, 0.5) / 1000,
        p99_ms=percentile(latencies, 0.99) / 1000,
        p999_ms=percentile(latencies, 0.999) / 1000,
        seconds=round(seconds, 2),
        sync_ms=round(seen.sync_ms, 3),
        other_cores=round(seen.other_cores, 2),
        processes={name: used(name) for name in plan.pids},
        clients={name: used(name) for name in clients},
        slowdown=round(seen.slowdown, 2),
    )


@contextlib.asynccontextmanager
async def _started(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    program = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        env={**MALLOC_ENVIRONMENT, **os.environ},
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


async def _line(program: asyncio.subprocess.Process, seconds: float) -> bytes:
    assert program.stdout is not None
    try:
        line = await asyncio.wait_for(program.stdout.readline(), seconds)
    except TimeoutError:
        raise LoadFailed(f"a load program is silent for {seconds:g} s") from None
    if not line:
        raise LoadFailed(f"a load program ended with {await program.wait()}")
    return line
