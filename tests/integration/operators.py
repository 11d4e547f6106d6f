"""The command line as an operator of a deployed cluster uses it."""

import asyncio
import json
import os
import sys
from typing import Any

from tests.integration.cluster import Deployment


async def lockstep(deployment: Deployment, *words: str) -> tuple[int, str, str]:
    return await run(*words, "--brokers", ",".join(deployment.addresses))


async def run(*words: str) -> tuple[int, str, str]:
    """Exit status, and what it said on stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lockstep.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LOCKSTEP_COORDINATORS": ""},
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def read(deployment: Deployment, *words: str) -> Any:
    status, out, err = await lockstep(deployment, *words, "--json")
    assert status == 0, err
    return json.loads(out)
