"""`python -m bench.peers`: Lockstep and its peers side by side, in one run on one disk; ends with 1 when a must is missed.

RabbitMQ has to be there (scripts/setup_peers.sh installs it); PostgreSQL and ActiveMQ Artemis are measured where they are.
"""

import argparse
import contextlib
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.cases import W1, W2, W3, W4_XA
from bench.compiling import compiled
from bench.database import database_versions, synced_database
from bench.environment import Disk, Refused, commit, described_machine
from bench.musts import MUSTS, exit_status, ratio_line, standings
from bench.own_cluster import started
from bench.peers import artemis, postgres, rabbitmq
from bench.peers.rounds import System, run_rounds
from bench.report import write_report
from bench.results import Run, medians
from bench.scratch import add_directory, run, scratch_directory
from bench.tables import conditions, measurements_table

OUTPUT = Path("bench/out")
_VERSIONS = {
    rabbitmq.NAME: rabbitmq.versions,
    postgres.NAME: database_versions,
    artemis.NAME: artemis.versions,
}


async def main(given: argparse.Namespace) -> int:
    """Returns the exit status."""
    console = Console(width=200)
    begun = datetime.now(UTC)
    with scratch_directory(given.directory) as (directory, disk):
        cases = [must.case for must in MUSTS] if given.musts else [*W1, *W2, *W3, *W4_XA]
        async with contextlib.AsyncExitStack() as stack:
            systems = [*await _systems(console, stack, directory, disk, given.peers)]
            found = await run_rounds(console, cases, systems, given.rounds, given.seconds, directory)
            syncs = {system.name: system.syncs for system in systems}
    versions = {
        program: version
        for name in syncs
        if name in _VERSIONS
        for program, version in _VERSIONS[name]().items()
    }
    made = Run("peers", begun, commit(), described_machine(versions), disk, found, syncs=syncs)
    write_report(made, given.output)
    console.print(conditions(made))
    for name, what in syncs.items():
        console.print(f"{name}: {what}.")
    console.print(measurements_table(medians(found), with_system=True), markup=False, soft_wrap=True)
    ratios = standings(found)
    console.print(ratio_line(ratios), soft_wrap=True)
    return exit_status(ratios)


async def _systems(
    console: Console, stack: contextlib.AsyncExitStack, directory: Path, disk: Disk, names: list[str]
) -> list[System]:
    systems: list[System] = [await stack.enter_async_context(started(directory / "lockstep"))]
    if "rabbitmq" in names:
        program = await compiled(
            rabbitmq.SOURCE, directory, ("rabbitmq", "pthread"), "rabbitmq-server, librabbitmq-dev"
        )
        nodes = await stack.enter_async_context(rabbitmq.RabbitMQ(directory / "rabbitmq"))
        systems += [rabbitmq.RabbitLoad(nodes, program, is_spread=is_spread) for is_spread in (True, False)]
    if "postgres" in names:
        systems += await _optional(console, _postgres(stack, directory))
    if "artemis" in names:
        systems += await _optional(console, _artemis(stack, directory, 1 / disk.syncs_per_second))
    return systems


async def _optional(console: Console, starting: Coroutine[None, None, System]) -> list[System]:
    """A peer, if it is there."""
    try:
        return [await starting]
    except Refused as refused:
        console.print(f"left out: {refused}")
        return []


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
    parser.add_argument("--musts", action="store_true", help="only the cases that have a must")
    parser.add_argument("--peers", nargs="+", default=["rabbitmq", "postgres", "artemis"])
    add_directory(parser)
    parser.add_argument("--output", type=Path, default=OUTPUT / "peers.json")
    run(main(parser.parse_args()))
