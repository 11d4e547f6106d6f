"""`python -m bench.peers`: Lockstep and its peers side by side, in one run on one disk; ends with 1 when a must is missed, or a
measurement is missing that a must is of.

RabbitMQ has to be there (scripts/setup_peers.sh installs it); PostgreSQL and ActiveMQ Artemis are measured where they are, and
missing where they are not or do not start. What was measured so far is written also where an error or a signal ends the run.
"""

import argparse
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.cases import W1, W2, W3, W4_XA
from bench.compiling import compiled
from bench.database import database_versions, synced_database
from bench.environment import Disk, Refused, commit, described_machine
from bench.load_programs import SYSTEM_LOST, reason
from bench.musts import MUSTS, exit_status, ratio_line, standings
from bench.own_cluster import started
from bench.patience import PATIENCE_SECONDS
from bench.peers import artemis, postgres, rabbitmq
from bench.peers.rounds import Rounds, System
from bench.report import write_report
from bench.results import Run, medians
from bench.scratch import add_directory, run, scratch_directory
from bench.tables import conditions, measurements_table, missing_lines

OUTPUT = Path("bench/out")
PEERS = (rabbitmq.NAME, postgres.NAME, artemis.NAME)
_VERSIONS = {
    rabbitmq.NAME: rabbitmq.versions,
    postgres.NAME: database_versions,
    artemis.NAME: artemis.versions,
}


async def main(given: argparse.Namespace) -> int:
    """Returns the exit status."""
    console = Console(width=200)
    begun, kind = datetime.now(UTC), "musts" if given.musts else "peers"
    with scratch_directory(given.directory) as (directory, disk):
        cases = [must.case for must in MUSTS] if given.musts else [*W1, *W2, *W3, *W4_XA]
        rounds = Rounds(console, directory, given.seconds, given.patience)
        async with contextlib.AsyncExitStack() as stack:
            systems, left_out = await _systems(console, stack, directory, disk, given.peers)
            syncs = {system.name: system.syncs for system in systems}
            try:
                await rounds.run(cases, systems, given.rounds)
            finally:
                missing = {**left_out, **rounds.missing}
                if found := rounds.found:
                    machine = described_machine(_versions(syncs))
                    made = Run(kind, begun, commit(), machine, disk, found, syncs=syncs, missing=missing)
                    _report(made, given.output or OUTPUT / f"{kind}.json", console)
    ratios = standings(rounds.found)
    console.print(ratio_line(ratios), soft_wrap=True)
    return 1 if rounds.is_must_missing else exit_status(ratios)


def _versions(systems: Iterable[str]) -> dict[str, str]:
    """Of the programs of these systems, by program."""
    known = [_VERSIONS[name]() for name in systems if name in _VERSIONS]
    return {program: version for versions in known for program, version in versions.items()}


def _report(made: Run, output: Path, console: Console) -> None:
    write_report(made, output)
    console.print(conditions(made))
    for name, what in made.syncs.items():
        console.print(f"{name}: {what}.")
    console.print(
        measurements_table(medians(made.measurements), with_system=True), markup=False, soft_wrap=True
    )
    if made.missing:
        console.print(missing_lines(made.missing), markup=False, soft_wrap=True)


async def _systems(
    console: Console, stack: contextlib.AsyncExitStack, directory: Path, disk: Disk, names: list[str]
) -> tuple[list[System], dict[str, str]]:
    """Those that are measured, and why others that were asked for are not."""
    systems: list[System] = [await stack.enter_async_context(started(directory / "lockstep"))]
    left_out: dict[str, str] = {}
    if rabbitmq.NAME in names:
        program = await compiled(
            rabbitmq.SOURCE, directory, ("rabbitmq", "pthread"), "rabbitmq-server, librabbitmq-dev"
        )
        nodes = await stack.enter_async_context(rabbitmq.RabbitMQ(directory / "rabbitmq"))
        systems += [rabbitmq.RabbitLoad(nodes, program, is_spread=is_spread) for is_spread in (True, False)]
    optional: dict[str, Callable[[], Awaitable[System]]] = {
        postgres.NAME: partial(_postgres, stack, directory),
        artemis.NAME: partial(_artemis, stack, directory, 1 / disk.syncs_per_second),
    }
    for name, start in optional.items():
        if name in names:
            try:
                systems.append(await start())
            except (Refused, *SYSTEM_LOST) as error:
                left_out[name] = reason(error)
                console.print(f"{name} is left out: {error}", markup=False)
    return systems, left_out


async def _artemis(stack: contextlib.AsyncExitStack, directory: Path, sync_seconds: float) -> System:
    pair = artemis.Artemis(directory / "artemis", artemis.find_home(), sync_seconds)
    return await stack.enter_async_context(pair)


async def _postgres(stack: contextlib.AsyncExitStack, directory: Path) -> System:
    program = await compiled(postgres.SOURCE, directory, ("pq", "pthread"), postgres.PACKAGES)
    process = await stack.enter_async_context(synced_database(directory / "postgres"))
    return postgres.Postgres(process, program)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="medians are of so many")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_SECONDS,
        metavar="SECONDS",
        help="that the run spends on waiting for a quiet machine, and on measuring again; a fifteenth of it at one time",
    )
    parser.add_argument("--musts", action="store_true", help="only the cases that have a must")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    add_directory(parser)
    parser.add_argument(
        "--output", type=Path, help="default: peers.json in bench/out, with --musts musts.json"
    )
    run(main(parser.parse_args()))
