"""`python -m bench.peers`: Lockstep and its peers side by side, in one run on one disk; ends with 1 when a must is missed, or a
measurement is missing that a must is of. With `--sustained` it measures minutes, for which there are no musts.

A run in the form of its kind (`forms.py`) is written into the register, however it comes out and however it ends. RabbitMQ has to
be there (scripts/setup_peers.sh installs it); PostgreSQL and ActiveMQ Artemis are measured where they are, and missing where they
are not or do not start. What was measured so far is written also where an error or a signal ends the run.
"""

import argparse
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import register
from bench.compiling import compiled
from bench.database import database_versions, synced_database
from bench.environment import Disk, Refused, commit, described_machine
from bench.forms import FORMS
from bench.load_programs import SYSTEM_LOST, reason
from bench.musts import exit_status, ratio_line, standings
from bench.own_cluster import ThroughProxy, started
from bench.own_runs import amqp_program
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
    begun, kind, form = datetime.now(UTC), given.kind, FORMS[given.kind]
    seconds, number = given.seconds or form.seconds, given.rounds or form.rounds
    peers = list(given.peers or form.peers)
    console.print(
        f"about {form.minutes} minutes in the form of '{kind}', and up to {given.patience / 60:.0f} more of patience"
    )
    with scratch_directory(given.directory) as (directory, disk):
        rounds = Rounds(console, directory, seconds, given.patience)
        async with contextlib.AsyncExitStack() as stack:
            systems, left_out = await _systems(console, stack, directory, disk, peers)
            syncs = {system.name: system.syncs for system in systems}
            try:
                await rounds.run(form.cases, systems, number)
            finally:
                missing = {**left_out, **rounds.missing}
                if found := rounds.found:
                    made = Run(
                        *(kind, begun, commit(), described_machine(_versions(syncs)), disk, found),
                        syncs=syncs,
                        missing=missing,
                        set_aside=rounds.set_aside,
                        seconds=seconds,
                    )
                    _report(made, given.output or OUTPUT / f"{made.name}.json", console)
                    if register.has_form(kind, seconds, number, peers):
                        register.append(made)
                    else:
                        console.print(
                            f"this is no run in the form of '{kind}': it is not in {register.REGISTER}"
                        )
    ratios = standings(rounds.found)
    console.print(ratio_line(ratios), soft_wrap=True)
    if kind == "sustained":
        return 1 if rounds.missing else 0
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
    left_out: dict[str, str] = {}
    proxy_client = await amqp_program(console, directory)
    cluster = await stack.enter_async_context(
        started(directory / "lockstep", proxies=1 if proxy_client else 0, amqp_program=proxy_client)
    )
    systems: list[System] = [cluster]
    if proxy_client is not None:
        systems.append(ThroughProxy(cluster))
    else:
        left_out["lockstep, amqp"] = "no load program for the proxy"
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
    kinds = parser.add_mutually_exclusive_group()
    for kind, what in (("musts", "only the cases that have a must"), ("sustained", "these for minutes each")):
        kinds.add_argument(
            f"--{kind}", dest="kind", action="store_const", const=kind, default="peers", help=what
        )
    parser.add_argument(
        "--rounds", type=int, default=0, help="medians are of so many; default: as the form has it"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="of each measurement; default: the same")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_SECONDS,
        metavar="SECONDS",
        help="that the run spends on waiting for a quiet machine, and on measuring again; a fifteenth of it at one time",
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[], help="default: as the form has it")
    add_directory(parser)
    parser.add_argument(
        "--output", type=Path, help="default: in bench/out, by the kind and the cores of the machine"
    )
    run(main(parser.parse_args()))
