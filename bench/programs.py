"""Programs that benchmarks start beside servers: load programs, compilers, whoever counts or asks.

Law: none outlives the block that it was started for, nor the benchmark, however that ends.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

DIES_WITH_STARTER = ("setpriv", "--pdeathsig=KILL")
"""Becomes the program itself, and asks for its end when ours comes."""


@contextlib.asynccontextmanager
async def running(command: Sequence[str], **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end of the block if it runs still. `options`: as of `asyncio.create_subprocess_exec`."""
    program = await asyncio.create_subprocess_exec(*DIES_WITH_STARTER, *command, **options)
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
