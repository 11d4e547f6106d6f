"""What the harness asks of a load program, with programs of a few lines."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.load_programs import LoadFailed, Plan, ServerEnded, measure

_DONE = '{"operations": 20, "messages": 200, "seconds": 0.1, "latencies_us": [1000, 3000, 2000]}'
WORKS = f"print('ready', flush=True); input(); print('{_DONE}', flush=True); import sys; sys.stdin.read()"


def plan(*programs: str) -> Plan:
    commands = [(sys.executable, "-I", "-S", "-c", program) for program in programs]
    return Plan("lockstep", "sdk", "W1", "a case", commands, {"primary": os.getpid()}, 0.0, 0.1)


async def test_programs_add_up_and_everybody_is_measured(tmp_path: Path) -> None:
    one = await measure(plan(WORKS, WORKS), tmp_path)
    assert (one.operations_per_second, one.messages_per_second) == (400.0, 4000.0)
    assert (one.p50_ms, one.p99_ms) == (2.0, 3.0)
    assert (sorted(one.processes), sorted(one.clients)) == (["primary"], ["client 1", "client 2"])
    assert all(used.resident_mib > 1 for used in (*one.processes.values(), *one.clients.values()))


async def test_one_program_is_the_client(tmp_path: Path) -> None:
    assert list((await measure(plan(WORKS), tmp_path)).clients) == ["client"]


@pytest.mark.parametrize(
    "program",
    ["", "print('ready', flush=True); input()", "import sys; sys.exit(3)"],
    ids=["says nothing", "has no result", "fails"],
)
async def test_a_program_that_ends_too_early_is_a_failure(tmp_path: Path, program: str) -> None:
    with pytest.raises(LoadFailed, match="ended with"):
        await measure(plan(WORKS, program), tmp_path)


async def test_a_program_that_fails_behind_its_result_is_a_failure_for_its_queues_are_left(
    tmp_path: Path,
) -> None:
    with pytest.raises(LoadFailed, match="ended with 3 behind its result"):
        await measure(plan(WORKS, f"{WORKS}; sys.exit(3)"), tmp_path)


async def test_what_is_no_result_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="says no result"):
        await measure(plan(WORKS.replace('"operations": 20', '"operations": "many"')), tmp_path)


async def test_a_server_that_ends_meanwhile_is_said(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec("true")
    await server.wait()
    with pytest.raises(ServerEnded, match="store B1 ended"):
        await measure(replace(plan(WORKS), pids={"primary": os.getpid(), "store B1": server.pid}), tmp_path)
