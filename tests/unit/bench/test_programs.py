"""Programs end with the block that they are started for."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from bench.programs import running

STARTER = """
import asyncio, sys
from bench.programs import running
async def main():
    async with running(("sleep", "60")) as program:
        print(program.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_program_that_runs_still_is_ended() -> None:
    with pytest.raises(KeyError):
        async with running(("sleep", "60")) as program:
            raise KeyError
    assert program.returncode == -signal.SIGKILL


async def test_a_program_that_has_ended_has_its_status() -> None:
    async with running(("false",)) as program:
        assert await program.wait() == 1


async def test_a_program_ends_with_who_started_it() -> None:
    command = (sys.executable, "-c", STARTER)
    starter = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(await starter.stdout.readline())
    await until(pid, "sleep")
    starter.kill()
    await starter.wait()
    await until(pid, "")


async def until(pid: int, command: str) -> None:
    """Its process runs that; "": it has ended."""
    async with asyncio.timeout(10):
        while _command(pid) != command:
            await asyncio.sleep(0.01)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""
