"""What the benchmarks measure beside their own subject: processor time and memory of processes, the disk's sync, percentiles.

Law: a rate is shown together with the sync time of the same disk in the same run; without it the number says nothing.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from bench.processes import TICKS_PER_SECOND, all_processes, family_seconds

_PROBE_BYTES = 4096
_PROBE_PAUSE_SECONDS = 0.05


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def peak_resident_mib(pid: int) -> float:
    """The most that a process ever had resident since it began."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def load() -> float:
    """Processes that wanted to run in the last minute, on the whole machine."""
    return os.getloadavg()[0]


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of them lie; 0.0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0


class Probe:
    """Looks again and again while something else runs; `async with` around that."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "left after it was entered"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        raise NotImplementedError


class SyncProbe(Probe):
    """Measures fdatasync of 4 KiB on a directory's disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / "sync-probe"
        self._seconds: list[float] = []

    @property
    def median_ms(self) -> float:
        return 1000 * statistics.median(self._seconds) if self._seconds else 0.0

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._path.unlink(missing_ok=True)

    async def _run(self) -> None:
        while True:
            self._seconds.append(await asyncio.to_thread(self._sync_once))
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)

    def _sync_once(self) -> float:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, b"x" * _PROBE_BYTES)
            start = time.monotonic()
            os.fdatasync(descriptor)
            return time.monotonic() - start
        finally:
            os.close(descriptor)


class CpuMeter:
    """Processor time of several processes, and of what is below them, between `start` and `read`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before: dict[str, float] = {}

    def start(self) -> None:
        self._before = self._used()

    def read(self) -> dict[str, float]:
        return {name: used - self._before[name] for name, used in self._used().items()}

    def _used(self) -> dict[str, float]:
        processes = all_processes()
        return {name: family_seconds(pid, processes) for name, pid in self._pids.items()}
