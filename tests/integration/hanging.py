"""A process that hangs: stopped by SIGSTOP, and known to be."""

import asyncio
import os
import signal
from pathlib import Path


async def hang(pid: int) -> None:
    """SIGSTOP; returns when no thread of the process runs any more, which the signal alone does not promise."""
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(20):
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
            await asyncio.sleep(0.001)


def _is_stopped(thread: Path) -> bool:
    try:
        text = (thread / "stat").read_text()
    except OSError:
        # It has ended since the threads were listed.
        return True
    # The state is the first field behind the name, which is in brackets and may itself hold some.
    return text.rpartition(")")[2].split()[0] == "T"
