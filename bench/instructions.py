"""Instructions that processes execute, counted by `perf stat` where the machine has such a counter: unlike processor time they do
not depend on what else runs, nor on the clock of the day."""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Mapping

_EVENT = "instructions"


async def can_count() -> bool:
    """Whether there is a perf, and a counter that it may use; virtual machines often have none."""
    perf = shutil.which("perf")
    if perf is None:
        return False
    process = await asyncio.create_subprocess_exec(
        *(perf, "stat", "-x", ",", "-e", _EVENT, "true"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await process.communicate()
    return counted(output.decode()) is not None


def counted(output: str) -> int | None:
    """What `perf stat -x ,` has counted; None: nothing."""
    for line in output.splitlines():
        value, _, event, *_ = [*line.split(","), "", ""]
        if event.startswith(_EVENT) and value.isdigit():
            return int(value)
    return None


class InstructionCounter:
    """Of several processes between `start` and `read`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._counting: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        for name, pid in self._pids.items():
            self._counting[name] = await asyncio.create_subprocess_exec(
                *("perf", "stat", "-x", ",", "-e", _EVENT, "-p", str(pid)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )

    async def read(self) -> dict[str, int]:
        """Of those that were counted."""
        found = {}
        for process in self._counting.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        for name, process in self._counting.items():
            _, output = await process.communicate()
            if (value := counted(output.decode())) is not None:
                found[name] = value
        return found
