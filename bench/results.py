"""What a run found, as it is written to a file and read again.

Law: a run is written only with its disk (`Disk.check`): where that is missing there is no result.
"""

import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from bench.environment import NOISY_CORES, NOISY_SLOWDOWN, Disk, Machine, Refused


class Used(msgspec.Struct, frozen=True):
    """What one process used while something was measured."""

    cores: float
    resident_mib: float
    us_per_message: float


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """What disturbed a measurement."""

    other_cores: float
    """Used by processes that have nothing to do with it."""
    slowdown: float = 0.0
    """Of the processors, by what nobody on this machine does (`SpeedProbe`); 1: none, 0: not looked for."""

    @property
    def disturbing_cores(self) -> float:
        """Used by whoever else worked."""
        return self.other_cores

    @property
    def disturbance(self) -> float:
        """How much, in what makes it noisy: above 1 it is. Nobody who did not look knows processors that were fast."""
        return max(self.disturbing_cores / NOISY_CORES, (self.slowdown or NOISY_SLOWDOWN) / NOISY_SLOWDOWN)

    @property
    def is_noisy(self) -> bool:
        return self.disturbance > 1


class Measurement(Disturbance, frozen=True):
    """One case, once."""

    system: str
    """lockstep, or the peer's name."""
    path: str
    """sdk, amqp, or how a peer was driven."""
    workload: str
    case: str
    operations_per_second: float
    messages_per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    seconds: float
    sync_ms: float
    """Median of one fdatasync of 4 KiB on the same disk meanwhile."""
    processes: dict[str, Used]
    """Of the servers, by their role."""
    clients: dict[str, Used]
    system_cores: dict[str, float] = {}
    """Used meanwhile by systems of the same run whose turn it was not, and by what of its own has no part in it, such as the
    proxy in a turn of the SDK; by system. None: nobody looked, or there are none."""
    restless: list[str] = []
    """Systems that had not come to rest when it began."""
    round: int = 0
    """Of the run, from 1; 0: nobody said."""

    @property
    def disturbing_cores(self) -> float:
        """Systems of the run count as others do."""
        return self.other_cores + sum(self.system_cores.values())

    @property
    def disturbance(self) -> float:
        """One that began while a system was not at rest is noisy, whatever was seen afterwards."""
        return super().disturbance + (1 if self.restless else 0)

    @property
    def key(self) -> tuple[str, str]:
        """Of the case, as it says itself."""
        return self.workload, self.case

    @property
    def server_us(self) -> float:
        """Processor time of all servers for each message."""
        return sum(used.us_per_message for used in self.processes.values())

    @property
    def client_us(self) -> float:
        return sum(used.us_per_message for used in self.clients.values())

    @property
    def total_us(self) -> float:
        return self.server_us + self.client_us

    @property
    def is_bound_by_client(self) -> bool:
        """A load program had no time left: the servers could perhaps do more. Only the SDK's are Python: others have threads."""
        return self.path == "sdk" and any(used.cores > CLIENT_CORES_MAX for used in self.clients.values())


CLIENT_CORES_MAX = 0.9
"""Of a load program that runs Python, which has one core at most."""


class Trial(Disturbance, frozen=True):
    """Failovers of one kind: seconds from the harm to the first commit, or what else `what` says."""

    what: str
    seconds: list[float]
    sync_ms: float = 0.0
    """As of a measurement, from the first trial to the last; 0: not measured."""
    cut_short: str = ""
    """Why there are fewer than were wanted, and so no goal is reached; "": there are all."""

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def worst_seconds(self) -> float:
        return max(self.seconds)


USUAL_CORES = 2
"""For which musts and goals are."""
NOT_YET = "its turn did not come"
"""Why something is missing that nothing was wrong with."""


BESIDE_OTHERS = {
    "peers": "Beside other systems",
    "musts": "Beside other systems: what has a must",
    "sustained": "Beside other systems: five minutes of each",
}
"""Kinds of runs in which others are measured too, and what the page calls them."""


class Run(msgspec.Struct, frozen=True):
    """Everything that one call of the harness found."""

    kind: str
    """short or full, or one of `BESIDE_OTHERS`."""
    started: datetime
    commit: str
    machine: Machine
    disk: Disk
    measurements: list[Measurement]
    failovers: list[Trial] = []
    syncs: dict[str, str] = {}
    """By system: what it has on disks before it confirms."""
    missing: dict[str, str] = {}
    """What was to be measured and was not, and why."""
    set_aside: list[Measurement] = []
    """What was measured again because it was disturbed, and does not count: everything that was measured is in one of the two."""
    seconds: float = 0.0
    """Of each measurement, as it was wanted; 0: nobody said."""

    @property
    def name(self) -> str:
        """Of its files: kinds are made for two cores."""
        return self.kind if self.machine.cores == USUAL_CORES else f"{self.kind}-{self.machine.cores}-cores"


def kind_of(process: str) -> str:
    """What a process is, by the name that it has in a measurement: of "backup B2" it is "backup"."""
    return process.partition(" ")[0]


def write_run(run: Run, path: Path) -> None:
    """Raises `Refused` for a run whose disk is not known, or is none."""
    run.disk.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))


def read_run(path: Path) -> Run:
    """Raises `Refused` as `write_run` does, and for what is no run: somebody else may have written the file."""
    try:
        run = msgspec.json.decode(path.read_bytes(), type=Run)
    except msgspec.DecodeError as error:
        raise Refused(f"{path} is not the file of a run: {error}") from error
    run.disk.check()
    return run


def medians(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One for each system, path and case, in the order in which they first came: that with the median rate of its repetitions.

    A whole measurement, not a median of each figure: its latencies and processors belong to its rate. Of an even number it is
    the lower one of the middle.
    """
    groups: dict[tuple[str, str, tuple[str, str]], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.system, one.path, one.key), []).append(one)
    return [
        next(one for one in group if one.messages_per_second == _middle(group)) for group in groups.values()
    ]


def by_round(measurements: Sequence[Measurement]) -> dict[int, Measurement]:
    """Of one system, path and case: in the round that each says, or in that of its place where none does."""
    return {one.round or place: one for place, one in enumerate(measurements, 1)}


def _middle(group: Sequence[Measurement]) -> float:
    return statistics.median_low([one.messages_per_second for one in group])
