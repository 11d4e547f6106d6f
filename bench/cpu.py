"""Processor time of each message at each hop: the client, the primary, a backup, a store, the proxy. `make bench-cpu`.

Law: this is what keeps a gain: rates hold for one machine and one hour, the processor time of a message for much longer, and
instructions (where there is a callgrind to count them) for ever. Every run adds one line to docs/cpu-per-message.jsonl, which is
committed with the change that it belongs to. A case is measured several times; a hop's figure is the median.
"""

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from bench.cases import COSTS, COSTS_AMQP
from bench.environment import Disk, commit, described_machine
from bench.instructions import can_count, counted_instructions
from bench.load_programs import measure
from bench.own_cluster import started
from bench.own_runs import amqp_program
from bench.results import Measurement, kind_of
from bench.scratch import add_directory, run, scratch_directory
from bench.tables import figure, table

RECORD = Path("docs/cpu-per-message.jsonl")
HOPS = ("client", "proxy", "primary", "backup", "store")
"""As the processes' names begin; of several (two backups, three stores) it is the mean of one."""


class Hops(msgspec.Struct, frozen=True):
    """What one case costs; for each message."""

    us: dict[str, float]
    messages_per_second: float
    instructions: dict[str, float] = {}
    """Of the hop's cores and codecs (`bench/instructions.py`); none: not counted."""


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
    slowdown: float = 0.0
    """The most that processors were slowed down during one of its measurements; 0: not looked for."""


def by_hop(repetitions: Sequence[Measurement], instructions: Mapping[str, float] | None = None) -> Hops:
    """The median of each hop over repetitions of one case, and what was counted of it."""
    us: dict[str, float] = {}
    for hop in HOPS:
        costs = [_mean(one, hop) for one in repetitions]
        if any(costs):
            us[hop] = round(statistics.median(costs), 1)
    rate = statistics.median(one.messages_per_second for one in repetitions)
    return Hops(us, round(rate), dict(instructions or {}))


def _mean(one: Measurement, hop: str) -> float:
    used = [
        value.us_per_message
        for name, value in {**one.processes, **one.clients}.items()
        if kind_of(name) == hop
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
    """Markdown: tables of what each hop costs, and what it did in an entry before, and how disturbed the two were."""
    rows, counted = [], []
    for title, hops in new.cases.items():
        before = old.cases.get(title) if old is not None else None
        cells = [_change(hops.us, before.us if before else {}, hop) for hop in HOPS]
        rows.append([title, *cells, figure(hops.messages_per_second)])
        if hops.instructions:
            cells = [_change(hops.instructions, before.instructions if before else {}, hop) for hop in HOPS]
            counted.append([title, *cells])
    shown = table(("CPU us a message (before)", *HOPS, "msgs/s"), rows)
    if counted:
        shown += "\n\n" + table(("instructions a message (before)", *HOPS), counted)
    return f"{shown}\n\nMeanwhile {_disturbance(new)}" + (f" (before: {_disturbance(old)})." if old else ".")


def _disturbance(entry: Entry) -> str:
    slowdown = f"up to {entry.slowdown:.2f} times slower than at best" if entry.slowdown else "not looked at"
    return f"others used up to {entry.other_cores:.2f} cores, and processors were {slowdown}"


def _change(new: Mapping[str, float], old: Mapping[str, float], hop: str) -> str:
    if hop not in new:
        return "-"
    return figure(new[hop]) + (f" ({figure(old[hop])})" if hop in old else "")


async def main(rounds: int, seconds: float, directory: Path | None, record: Path) -> int:
    """Returns the exit status."""
    console = Console(width=160)
    found: dict[str, list[Measurement]] = {}
    with scratch_directory(directory) as (scratch, disk):
        program = await amqp_program(console, scratch)
        cases = [*COSTS, *(COSTS_AMQP if program else ())]
        async with started(scratch / "cluster", proxies=1 if program else 0, amqp_program=program) as cluster:
            for _ in range(rounds):
                for case in cases:
                    plan = await cluster.plan(case, seconds=seconds)
                    one = await measure(plan, scratch)
                    title = f"{case.workload} {case.title}" + (" (AMQP)" if case.path == "amqp" else "")
                    found.setdefault(title, []).append(one)
        instructions = await counted_instructions(scratch) if can_count() else {}
    machine = described_machine()
    measured = [one for ones in found.values() for one in ones]
    entry = Entry(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit(),
        machine.processor,
        machine.cores,
        disk,
        max(one.other_cores for one in measured),
        {title: by_hop(ones, instructions.get(title)) for title, ones in found.items()},
        max(one.slowdown for one in measured),
    )
    known = read_record(record)
    console.print(changes(entry, known[-1] if known else None), markup=False, soft_wrap=True)
    if not instructions:
        console.print("instructions are not counted: no valgrind (Debian's name)")
    await asyncio.to_thread(add_to_record, entry, record)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    add_directory(parser)
    parser.add_argument("--record", type=Path, default=RECORD, help="to which a line is added")
    given = parser.parse_args()
    run(main(given.rounds, given.seconds, given.directory, given.record))
