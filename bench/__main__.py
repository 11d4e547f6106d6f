"""`python -m bench`: the workloads on Lockstep alone, in minutes; with `--full` all of them, longer, and how it scales.

Writes a JSON file, from which `python -m bench.page` makes docs/performance.md, its tables as Markdown, and plots; of what was
measured so far also where an error or a signal ends it.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.database import database_versions
from bench.environment import Disk, commit, described_machine
from bench.own_cluster import NAME, SYNCS
from bench.own_runs import Runs
from bench.patience import PATIENCE_SECONDS
from bench.report import write_report
from bench.results import Run
from bench.scratch import add_directory, run, scratch_directory
from bench.tables import conditions, failovers_table, measurements_table, missing_lines, processes_table

OUTPUT = Path("bench/out")
WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
SHORT_SECONDS, FULL_SECONDS = 1.5, 8.0
SHORT_FAILOVERS, FULL_FAILOVERS = (5, 1, 1), (20, 5, 3)
"""SIGKILL and SIGSTOP of the primary, each of them of etcd's leader."""


def workload(name: str) -> str:
    """One of those there are. Raises `ArgumentTypeError`."""
    if name not in WORKLOADS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(WORKLOADS)}")
    return name


async def main(given: argparse.Namespace) -> int:
    """Returns the exit status: 1 if something is missing that this machine has everything for."""
    console = Console(width=200)
    begun = datetime.now(UTC)
    with scratch_directory(given.directory) as (directory, disk):
        seconds = given.seconds or (FULL_SECONDS if given.full else SHORT_SECONDS)
        patience = PATIENCE_SECONDS if given.full else 0.0
        runs = Runs(console, directory, given.workloads, seconds, given.client_processes, patience)
        try:
            await runs.run(is_full=given.full, failovers=FULL_FAILOVERS if given.full else SHORT_FAILOVERS)
        finally:
            _report(given, console, begun, disk, runs)
    console.print(f"took {(datetime.now(UTC) - begun).total_seconds():.0f} s")
    return 1 if runs.has_failed else 0


def _report(given: argparse.Namespace, console: Console, begun: datetime, disk: Disk, runs: Runs) -> None:
    """Of what was measured, if anything was."""
    if not runs.found and not runs.failovers:
        return
    kind = "full" if given.full else "short"
    machine = described_machine(database_versions() if "W4" in given.workloads else None)
    syncs = {NAME: SYNCS}
    made = Run(
        *(kind, begun, commit(), machine, disk, runs.found, runs.failovers, syncs, runs.missing),
        set_aside=runs.set_aside,
        seconds=runs.seconds,
    )
    write_report(made, given.output or OUTPUT / f"{kind}.json")
    console.print(conditions(made), markup=False, soft_wrap=True)
    if made.measurements:
        for table in (measurements_table(made.measurements), processes_table(made.measurements)):
            console.print(table, markup=False, soft_wrap=True)
    if made.failovers:
        console.print(failovers_table(made.failovers), markup=False, soft_wrap=True)
    if made.missing:
        console.print(missing_lines(made.missing), markup=False, soft_wrap=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", type=workload, default=WORKLOADS, help="W1 to W7; default: all"
    )
    parser.add_argument(
        "--full", action="store_true", help="longer, more of W4 and of what goes through the proxy, and W7"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="of each measurement")
    parser.add_argument(
        "--client-processes", type=int, default=1, help="among which a case's connections are shared"
    )
    add_directory(parser)
    parser.add_argument(
        "--output", type=Path, help="the JSON file, the others are put beside it; default: in bench/out"
    )
    run(main(parser.parse_args()))
