"""Where a benchmark runs: the disk under its data, the machine, and what others do on it meanwhile.

Law: a result without the file system's type and the fdatasync rate of its own data directory is none, nor is one on tmpfs: what
is not on a disk was not made durable. A measurement during which others used more than `NOISY_CORES`, or the processors were
slower than `NOISY_SLOWDOWN`, says that it is noisy.
"""

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from bench.processes import TICKS_PER_SECOND, Process, all_processes, family, family_seconds
from bench.versions import etcd_version
from lockstep.runtime.file_systems import filesystem_of

NOISY_CORES = 0.35
"""Of others, on average; above it rates are those of the others, too."""
NOISY_SLOWDOWN = 1.25
"""Of processors (`SpeedProbe`). On a quiet machine a load makes it 1.05 to 1.2, for it uses their caches."""
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
_RECORD_BYTES = 1024
_PROBE_RECORDS = 2000
_KERNEL_THREADS = 2
"""Linux: the parent of them all."""


class Refused(Exception):
    """No benchmark here, or no result of it; says why."""


class Disk(msgspec.Struct, frozen=True):
    """What the data of a run was on."""

    filesystem: str
    """Its type, such as ext4; "" if nobody could tell."""
    syncs_per_second: float
    """fdatasync of 1 KiB each, one after the other, into preallocated room; 0: not measured."""

    def check(self) -> None:
        """Raises `Refused`."""
        if not self.filesystem or self.syncs_per_second <= 0:
            raise Refused("a result needs the type of its file system and its fdatasync rate")
        if self.filesystem in _MEMORY_FILESYSTEMS:
            raise Refused(
                f"the data directory is on {self.filesystem}, which no sync makes durable: choose one with --directory"
            )


class Machine(msgspec.Struct, frozen=True):
    """What it is."""

    processor: str
    cores: int
    """That this process, and so all that it starts, may use."""
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str]
    """Of what matters for the figures, libraries and programs; of those that are known."""


def measured_disk(directory: Path, seconds: float = 1.0) -> Disk:
    """Of a directory that exists; raises `Refused` where no result could be accepted."""
    disk = Disk(filesystem_of(directory), _syncs_per_second(directory, seconds))
    disk.check()
    return disk


def _syncs_per_second(directory: Path, seconds: float) -> float:
    path = directory / "disk-probe"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.write(descriptor, bytes(_PROBE_RECORDS * _RECORD_BYTES))
        os.fsync(descriptor)
        record = b"x" * _RECORD_BYTES
        count, begin = 0, time.monotonic()
        while (spent := time.monotonic() - begin) < seconds:
            os.pwrite(descriptor, record, (count % _PROBE_RECORDS) * _RECORD_BYTES)
            os.fdatasync(descriptor)
            count += 1
        return count / spent
    finally:
        os.close(descriptor)
        path.unlink()


class OtherLoad:
    """Processor time that processes other than ours use between `start` and `cores`; the kernel's own threads are nobody's."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._busy = 0.0
        self._before: dict[int, Process] = {}

    def start(self) -> None:
        self._begin, self._busy, self._before = time.monotonic(), _busy_seconds(), all_processes()

    def cores(self) -> float:
        """On average since `start`."""
        busy = _busy_seconds() - self._busy
        used = used_by_others(busy, self._before, all_processes(), os.getpid())
        return max(0.0, used) / (time.monotonic() - self._begin)


def used_by_others(
    busy_seconds: float, before: Mapping[int, Process], after: Mapping[int, Process], own: int
) -> float:
    """What is left of all processor time without process `own`, everything below it, and the kernel's threads.

    Of those threads only what is there at the end counts: they come and go, and nobody inherits what they have used.
    """
    mine = family_seconds(own, after) - family_seconds(own, before)
    threads = 0.0
    for pid in family(_KERNEL_THREADS, after):
        if pid in after:
            known = before[pid].own_seconds if pid in before else 0.0
            threads += after[pid].own_seconds - known
    return busy_seconds - mine - threads


def _busy_seconds() -> float:
    """Of all cores since the machine was started, waiting for disks and idling left out."""
    user, nice, system, _, _, interrupts, soft, *_ = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) / TICKS_PER_SECOND


def described_machine(programs: Mapping[str, str] | None = None) -> Machine:
    """`programs`: versions of what took part beside Lockstep and its etcd; "" where nobody could tell."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    libraries = {name: _version(name) for name in ("grpcio", "protobuf", "uvloop", "python-qpid-proton")}
    versions = {**libraries, "etcd": etcd_version(), **(programs or {})}
    return Machine(
        processor=names[0].partition(":")[2].strip() if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: version for name, version in versions.items() if version},
    )


def commit() -> str:
    """Of the checkout; "" if it is none. A '+' behind it: something in it is changed."""
    here = Path(__file__).parent
    command = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
