"""Processor time of each message at each hop: the client, the primary, a backup, a store, the proxy. `make bench-cpu`.

Law: this is what keeps a gain: rates hold for one machine and one hour, the processor time of a message for much longer, and
instructions (where they can be counted) for ever. Every run adds one line to docs/cpu-per-message.jsonl, which is committed with
the change that it belongs to. A case is measured several times; a hop's figure is the median.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from bench.cases import W2, W3_CONSUME, W3_PUBLISH, Case
from bench.environment import Disk, Refused, commit, described_machine, measured_disk
from bench.instructions import can_count
from bench.load_programs import measure
from bench.own_cluster import started
from bench.own_runs import amqp_program
from bench.results import Measurement
from bench.tables import figure, table

RECORD = Path("docs/cpu-per-message.jsonl")
HOPS = ("client", "proxy", "primary", "backup", "store")
"""As the processes' names begin; of several (two backups, three stores) it is the mean of one."""
CASES = (
    Case("W1", "publish", 1, 16),
    Case("W1", "publish", 10, 4),
    Case("W1", "publish", 10, 16),
    Case("W1", "publish", 100, 4),
    W2[0],
    W3_PUBLISH,
    W3_CONSUME,
)
AMQP_CASES = (Case("W1", "publish", 10, 4, path="amqp"), Case("W3", "stream", 1000, 4, path="amqp"))


class Hops(msgspec.Struct, frozen=True):
    """What one case costs; for each message."""

    us: dict[str, float]
    messages_per_second: float
    instructions: dict[str, float] = {}


class Entry(msgspec.Struct, frozen=True):
    """One line of the record."""

    date: str
    commit: str
    processor: str
    cores: int
    disk: Disk
    other_cores: float
    """The most that others used during one of its measurements."""
    cases: dict[str, Hops]


def by_hop(repetitions: Sequence[Measurement]) -> Hops:
    """The median of each hop over repetitions of one case."""
    us: dict[str, float] = {}
    instructions: dict[str, float] = {}
    for hop in HOPS:
        costs = [_mean(one, hop, "us_per_message") for one in repetitions]
        counts = [_mean(one, hop, "instructions_per_message") for one in repetitions]
        if any(costs):
            us[hop] = round(statistics.median(costs), 1)
        if any(counts):
            instructions[hop] = round(statistics.median(counts))
    rate = statistics.median(one.messages_per_second for one in repetitions)
    return Hops(us, round(rate), instructions)


def _mean(one: Measurement, hop: str, what: str) -> float:
    used = [
        getattr(value, what)
        for name, value in {**one.processes, **one.clients}.items()
        if name.partition(" ")[0] == hop
    ]
    # Several load programs share one load: together they are the client.
    return sum(used) if hop == "client" else statistics.mean(used) if used else 0.0


def read_record(path: Path) -> list[Entry]:
    """Oldest first."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]


def add_to_record(entry: Entry, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def changes(new: Entry, old: Entry | None) -> str:
    """A table in Markdown: what each hop costs, and what it did in an entry before."""
    rows = []
    for title, hops in new.cases.items():
        before = old.cases.get(title) if old is not None else None
        cells = [_change(hops.us, before.us if before else {}, hop) for hop in HOPS]
        rows.append([title, *cells, figure(hops.messages_per_second)])
    return table(("CPU us a message (before)", *HOPS, "msgs/s"), rows)


def _change(new: Mapping[str, float], old: Mapping[str, float], hop: str) -> str:
    if hop not in new:
        return "-"
    return figure(new[hop]) + (f" ({figure(old[hop])})" if hop in old else "")


async def main(rounds: int, seconds: float, directory: Path | None, record: Path) -> int:
    """Returns the exit status."""
    console = Console(width=160)
    found: dict[str, list[Measurement]] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=directory) as scratch:
        disk = await asyncio.to_thread(measured_disk, Path(scratch))
        with_instructions = await can_count()
        program = await amqp_program(console, Path(scratch))
        cases = [*CASES, *(AMQP_CASES if program else ())]
        async with started(
            Path(scratch) / "cluster", proxies=1 if program else 0, amqp_program=program
        ) as cluster:
            for _ in range(rounds):
                for case in cases:
                    plan = await cluster.plan(case, seconds=seconds)
                    one = await measure(plan, Path(scratch), with_instructions=with_instructions)
                    title = f"{case.workload} {case.title}" + (" (AMQP)" if case.path == "amqp" else "")
                    found.setdefault(title, []).append(one)
    machine = described_machine()
    entry = Entry(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit(),
        machine.processor,
        machine.cores,
        disk,
        max(one.other_cores for ones in found.values() for one in ones),
        {title: by_hop(ones) for title, ones in found.items()},
    )
    known = read_record(record)
    console.print(changes(entry, known[-1] if known else None), markup=False, soft_wrap=True)
    if not with_instructions:
        console.print("instructions are not counted: no perf, or no counter for it")
    if entry.other_cores:
        console.print(f"others used up to {entry.other_cores:.2f} cores")
    await asyncio.to_thread(add_to_record, entry, record)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; default: the system's")
    parser.add_argument("--record", type=Path, default=RECORD, help="to which a line is added")
    given = parser.parse_args()
    try:
        sys.exit(uvloop.run(main(given.rounds, given.seconds, given.directory, given.record)))
    except Refused as refused:
        sys.exit(f"bench: refused: {refused}")
