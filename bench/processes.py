"""The processes of this machine, as the kernel describes them at one moment: who is below whom, and what they have used."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""In which the kernel counts processor time."""


class Process(NamedTuple):
    """One of them."""

    parent: int
    own_seconds: float
    """Processor time, in user and kernel mode."""
    reaped_seconds: float
    """Of children that have ended and were waited for."""


def all_processes() -> dict[int, Process]:
    """By pid."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        found[int(status.parent.name)] = Process(
            int(fields[1]), own / TICKS_PER_SECOND, reaped / TICKS_PER_SECOND
        )
    return found


def family(root: int, processes: Mapping[int, Process]) -> set[int]:
    """A process and all below it."""
    found = {root}
    while more := {pid for pid, process in processes.items() if process.parent in found} - found:
        found |= more
    return found


def family_seconds(root: int, processes: Mapping[int, Process]) -> float:
    """What a process and all below it have used, with those that they have waited for; 0 of one that is not there."""
    members = [processes[pid] for pid in family(root, processes) if pid in processes]
    return sum(one.own_seconds + one.reaped_seconds for one in members)


def resident_mib(pid: int) -> float:
    """Resident memory of a process. Raises `FileNotFoundError` if it has ended."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def family_resident_mib(root: int) -> float:
    """Memory of a process; with others below it, the shared part of each counted once. Raises as `resident_mib`."""
    members = family(root, all_processes())
    if len(members) == 1:
        return resident_mib(root)
    return sum(map(_proportional_mib, members))


def _proportional_mib(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(rollup.partition("\nPss:")[2].split()[0]) / 2**10 if "\nPss:" in rollup else 0.0
