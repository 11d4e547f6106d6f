"""Load programs as child processes: started together, set off together, measured from outside while they work.

Law: what is measured is the middle: from the end of the warm-up to the end of the measured seconds, or of the work where that
is counted; and nothing begins before every system of the run rests. What a program needs beforehand and afterwards is nobody's. A
load program that fails costs what it was to measure; a server that ended or does not serve any more costs what was still to be
measured on its system (`SYSTEM_LOST`), and nothing else.
"""

import asyncio
import contextlib
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg

from bench.environment import OtherLoad
from bench.load import Done
from bench.measuring import CpuMeter, SyncProbe, percentile
from bench.processes import family_resident_mib
from bench.processor_speed import SpeedProbe
from bench.programs import running
from bench.rest import RESTING_SECONDS_MAX, Pids, at_rest
from bench.results import Measurement, Used
from lockstep.core.errors import LockstepError
from lockstep.runtime.process import MALLOC_ENVIRONMENT

LINE_BYTES_MAX = 1 << 28
"""Of the last line of a load program, with all its latencies."""
READY_SECONDS_MAX = 600.0
"""For one that fills a queue with a million messages first."""
END_SECONDS_MAX = 120.0
"""Beyond the measured seconds, and for what is done behind them."""


class LoadFailed(Exception):
    """A load program did not do what it was to do."""


class ServerEnded(Exception):
    """A server was there when a measurement began, and not when it ended."""


SYSTEM_LOST = (ServerEnded, LockstepError, AssertionError, OSError, psycopg.Error)
"""What says that a system cannot be measured any more: `AssertionError` is that of a deployment that waited in vain."""
_REASON_CHARACTERS_MAX = 300


def reason(error: Exception) -> str:
    """An error in one line, with its kind where it does not say more."""
    return " ".join(str(error).split())[:_REASON_CHARACTERS_MAX] or type(error).__name__


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


async def measure(
    plan: Plan,
    directory: Path,
    systems: Mapping[str, Pids] | None = None,
    *,
    round_number: int = 0,
    resting_seconds_max: float = RESTING_SECONDS_MAX,
) -> Measurement:
    """Runs the programs of a plan, once all systems rest; `directory` is on the disk that the servers write to. Raises
    `LoadFailed`, `ServerEnded`.

    `systems`: all processes of all systems of the run, by system; what has no part in the plan is not to work. `round_number`:
    from 1; 0: there are none.
    """
    known = systems or {}
    all_of_them = {**known, plan.system: {**known.get(plan.system, {}), **plan.pids}}
    used_pids = set(plan.pids.values())
    idle = {
        name: {role: pid for role, pid in pids.items() if pid not in used_pids}
        for name, pids in all_of_them.items()
    }
    async with contextlib.AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(_started(command)) for command in plan.commands]
        await asyncio.gather(*(_line(program, READY_SECONDS_MAX) for program in programs))
        restless = await at_rest(all_of_them, resting_seconds_max)
        clients = {
            "client" if len(programs) == 1 else f"client {number + 1}": program.pid
            for number, program in enumerate(programs)
        }
        meter, strangers = CpuMeter({**plan.pids, **clients}), OtherLoad()
        waiting = {name: CpuMeter(pids) for name, pids in idle.items() if pids}
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(b"go\n")
        await asyncio.sleep(plan.warm_seconds)
        async with SyncProbe(directory) as probe, SpeedProbe() as speed:
            begin = asyncio.get_running_loop().time()
            strangers.start()
            for one in (meter, *waiting.values()):
                one.start()
            ends = [
                asyncio.ensure_future(_line(program, plan.seconds + END_SECONDS_MAX)) for program in programs
            ]
            stack.push_async_callback(_given_up, ends)
            done, _ = await asyncio.wait(ends, timeout=plan.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for end in done:
                end.result()  # Raises what has failed, before its process is asked what it used.
            used, other_cores = meter.read(), strangers.cores()
            worked = {name: sum(one.read().values()) for name, one in waiting.items()}
            took = asyncio.get_running_loop().time() - begin
            memory = {**_resident_mib(plan.pids, ServerEnded), **_resident_mib(clients, LoadFailed)}
        results = [_done(line) for line in await asyncio.gather(*ends)]
        await asyncio.gather(*map(_ended, programs))
    return _measurement(
        plan,
        results,
        clients,
        _Seen(used, memory, took, other_cores, worked, restless, probe.median_ms, speed.slowdown),
        round_number,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of the processes, in the measured seconds."""

    cpu_seconds: Mapping[str, float]
    resident_mib: Mapping[str, float]
    seconds: float
    other_cores: float
    worked_seconds: Mapping[str, float]
    """By other systems of the run, in processor time."""
    restless: list[str]
    sync_ms: float
    slowdown: float


def _measurement(
    plan: Plan, done: Sequence[Done], clients: Mapping[str, int], seen: _Seen, round_number: int
) -> Measurement:
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
        system_cores={
            name: round(max(0.0, worked) / seen.seconds, 3) for name, worked in seen.worked_seconds.items()
        },
        restless=seen.restless,
        round=round_number,
    )


def _resident_mib(pids: Mapping[str, int], failure: type[Exception]) -> dict[str, float]:
    found = {}
    for name, pid in pids.items():
        try:
            found[name] = family_resident_mib(pid)
        except FileNotFoundError:
            raise failure(f"{name} ended while it was measured") from None
    return found


def _started(command: Sequence[str]) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    environment = {**MALLOC_ENVIRONMENT, **os.environ}
    return running(command, stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX, env=environment)


async def _line(program: asyncio.subprocess.Process, seconds: float) -> bytes:
    assert program.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await program.stdout.readline()
    except TimeoutError:
        raise LoadFailed(f"a load program is silent for {seconds:g} s") from None
    if not line:
        raise LoadFailed(f"a load program ended with {await program.wait()}")
    return line


def _done(line: bytes) -> Done:
    try:
        return msgspec.json.decode(line, type=Done)
    except msgspec.DecodeError as error:
        raise LoadFailed(f"a load program says no result: {error}") from None


async def _ended(program: asyncio.subprocess.Process) -> None:
    """Its queues are removed: those that are left would be in the way of the next one."""
    assert program.stdin is not None
    program.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS_MAX):
            status = await program.wait()
    except TimeoutError:
        raise LoadFailed(f"a load program does not end within {END_SECONDS_MAX:g} s") from None
    if status:
        raise LoadFailed(f"a load program ended with {status} behind its result")


async def _given_up(ends: Sequence[asyncio.Future[bytes]]) -> None:
    """Nobody waits any more for those that are left."""
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
