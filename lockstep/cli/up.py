"""`lockstep up`: a whole cluster on this machine, until Ctrl-C."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from lockstep.cli.connection import Json, console, fail, print_json_line, run, show_table, table
from lockstep.cli.status import lost_sets
from lockstep.client import Client, ErrorCode, LockstepError, Rejected, connect
from lockstep.runtime.local_cluster import LocalCluster
from lockstep.runtime.supervisor import ChildProcess
from lockstep.runtime.well_known_ports import AMQP_PORT, FIRST_PORT
from lockstep.wire.v1 import cluster_pb2 as pb

READY_SECONDS = 30.0
PORT_MAX = 65_535
WATCH_SECONDS = 0.1
RESTART_PAUSE_SECONDS = 1.0
"""After a start that failed, before the next one."""
LOST_SECONDS = 3.0
"""How long an old directory whose etcd knows of no set is looked at: it may never have had one."""


def up(
    data: Annotated[Path, typer.Option("--data", help="Directory of everything that is kept.")] = Path(
        "lockstep-data"
    ),
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Brokers, each with a store of its own.")] = 3,
    sets: Annotated[int, typer.Option(min=0, max=9, help="Resource sets of a new cluster.")] = 1,
    coordinators: Annotated[
        int, typer.Option(min=0, max=9, help="Coordinators of transactions over several sets.")
    ] = 2,
    proxies: Annotated[int, typer.Option(min=0, max=9, help="Proxies for AMQP clients.")] = 1,
    port: Annotated[int, typer.Option(help="Port of the first broker; 0: any free ports.")] = FIRST_PORT,
    amqp_port: Annotated[
        int, typer.Option(help="Port of the first proxy if it is free; 0: any free one.")
    ] = AMQP_PORT,
    store_ports: Annotated[
        bool, typer.Option("--store-ports", help="Stores at ports, not at Unix sockets in the directory.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start a process again that exits.")] = False,
    json: Json = False,
) -> None:
    """Run a cluster on this machine: etcd, stores, brokers, coordinators and AMQP proxies, with its data in a directory.

    Ctrl-C stops it.
    """
    for wanted in (port, port + brokers - 1, amqp_port):
        if not 0 <= wanted <= PORT_MAX:
            text = f"port {wanted} is not between 0 and {PORT_MAX}"
            fail(Rejected(ErrorCode.INVALID_ARGUMENT, text))
    cluster = LocalCluster(
        data,
        brokers=brokers,
        coordinators=coordinators,
        proxies=proxies,
        first_port=port,
        amqp_port=amqp_port,
        are_stores_at_ports=store_ports,
        is_kept_when_told=True,
    )
    run(serve(cluster, sets, restart, json))


async def serve(cluster: LocalCluster, sets: int, restart: bool, json: bool) -> None:
    """Starts, reports, waits for a signal (or the end of all brokers), stops."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever is started by nohup outlives its terminal. With any other, etcd would be left behind.
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.set)
    started = time.monotonic()
    await _unless(stopping, cluster.start())
    lost: dict[str, list[str]] = {}
    trouble = ""
    try:
        if not stopping.is_set():
            async with await connect(cluster.addresses) as client:
                try:
                    await _unless(stopping, prepare(client, cluster, sets))
                except Rejected as error:
                    if cluster.is_new:
                        raise
                    # What was kept needs an operator, who needs the brokers.
                    trouble = error.message
                if cluster.is_new and not stopping.is_set():
                    cluster.keep()
                if not cluster.is_new and not stopping.is_set():
                    lost = await _lost_sets(client)
        if not stopping.is_set():
            _report(cluster, time.monotonic() - started, json)
            _tell_lost(lost, json)
            _tell_trouble(trouble, json)
        watching = asyncio.ensure_future(watch(cluster, restart, json))
        await stopping.wait()
        watching.cancel()
        # What it starts at this moment is to be known to whoever stops everything.
        await asyncio.gather(watching, return_exceptions=True)
        if not json:
            console.print("Stopping.")
    finally:
        await cluster.stop()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or until a signal comes."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    else:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def prepare(client: Client, cluster: LocalCluster, sets: int) -> None:
    """Creates the sets of a new cluster, each with another first primary, and waits until all sets are served.

    An earlier start may have created some of them before it ended.
    """
    names = list(cluster.brokers)
    wanted = ["main"] if sets == 1 else [f"set-{number + 1}" for number in range(sets)]
    there = {entry.name for entry in (await client.administration.status()).view.sets}
    missing = (
        [name for name in wanted if name not in there] if cluster.is_new and there <= set(wanted) else []
    )
    for name in missing:
        first = wanted.index(name) % len(names)
        await client.administration.create_set(name, names[first:] + names[:first])
    await wait_until_led(client, expected=len(there) + len(missing) if cluster.is_new else 0)


async def wait_until_led(client: Client, expected: int = 0, seconds: float = READY_SECONDS) -> None:
    """Returns when every set has a primary that serves; raises `Rejected` (UNAVAILABLE) after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        status = await client.administration.status()
        waiting = [
            entry.name
            for entry in status.view.sets
            if not entry.is_led
            or (replica := status.replica(entry.primary, entry.name)) is None
            or replica.role != pb.ROLE_PRIMARY
        ]
        if not waiting and len(status.view.sets) >= expected:
            return
        if time.monotonic() >= deadline:
            troubles = {
                f"; {entry.name} on {broker}: {replica.trouble}"
                for entry in status.view.sets
                for broker in entry.brokers
                if (replica := status.replica(broker, entry.name)) is not None and replica.trouble
            }
            raise Rejected(
                ErrorCode.UNAVAILABLE,
                f"no primary of {', '.join(waiting) or 'any set'} after {seconds:g} s"
                + "".join(sorted(troubles)),
            )
        await asyncio.sleep(0.05)


async def _lost_sets(client: Client) -> dict[str, list[str]]:
    """Sets that are on disks and not in etcd: brokers know a moment after their stores answered."""
    deadline = time.monotonic() + LOST_SECONDS
    while True:
        status = await client.administration.status()
        if (lost := lost_sets(status)) or status.view.sets or time.monotonic() >= deadline:
            return lost
        await asyncio.sleep(0.1)


def _tell_trouble(trouble: str, json: bool) -> None:
    if json and trouble:
        print_json_line({"trouble": trouble})
    elif trouble:
        console.print(trouble, style="red")


def _tell_lost(lost: dict[str, list[str]], json: bool) -> None:
    if json and lost:
        print_json_line({"lost_sets": lost})
    for name, holders in () if json else lost.items():
        console.print(
            f"etcd has lost its data: set {name} is on the disks of {', '.join(holders)} and not in etcd."
            " See lockstep cluster rebuild-map --dry-run",
            style="red",
        )


def _report(cluster: LocalCluster, seconds: float, json: bool) -> None:
    if json:
        print_json_line(
            {
                "ready": True,
                "seconds": round(seconds, 3),
                "brokers": {name: broker.address for name, broker in cluster.brokers.items()},
                "coordinators": {name: one.command[-1] for name, one in cluster.coordinators.items()},
                "proxies": dict(zip(cluster.proxies, cluster.proxy_addresses, strict=True)),
                "etcd": cluster.etcd.endpoint if cluster.etcd else "",
                "data": str(cluster.directory),
                "pid": os.getpid(),
            }
        )
        return
    made = table("BROKER", "ADDRESS", "PID", "STORE PID", "LOG")
    for name, broker in cluster.brokers.items():
        made.add_row(
            name, broker.address, str(broker.broker.pid), str(broker.store.pid), str(broker.broker.log)
        )
    show_table(made)
    if cluster.coordinators:
        made = table("COORDINATOR", "ADDRESS", "PID", "LOG")
        for name, process in cluster.coordinators.items():
            made.add_row(name, process.command[-1], str(process.pid), str(process.log))
        show_table(made)
    if cluster.proxies:
        made = table("PROXY", "AMQP ADDRESS", "PID", "LOG")
        for (name, process), address in zip(cluster.proxies.items(), cluster.proxy_addresses, strict=True):
            made.add_row(name, f"amqp://{address}", str(process.pid), str(process.log))
        show_table(made)
    console.print(f"\nReady after {seconds:.1f} s. Ctrl-C stops it; the data stays in {cluster.directory}.")


async def watch(cluster: LocalCluster, restart: bool, json: bool) -> None:
    """Tells of processes that exit by themselves; with `restart` each is started again, whatever becomes of the others."""
    async with asyncio.TaskGroup() as group:
        for process, start in cluster.processes:
            group.create_task(_watch_process(process, start, restart, json))
        if cluster.etcd is not None:
            group.create_task(_watch_etcd(cluster, restart, json))


async def _watch_process(
    process: ChildProcess, start: Callable[[], Awaitable[None]], restart: bool, json: bool
) -> None:
    is_told = False
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if process.is_running or not process.is_expected_to_run:
            is_told = False
        elif not is_told:
            _tell_exit(process.name, process.status, process.log, json)
            is_told = not restart or await _start_again(start, json)


async def _watch_etcd(cluster: LocalCluster, restart: bool, json: bool) -> None:
    """Nothing fails over, and in a few seconds nothing is served, without it."""
    is_told = False
    while (etcd := cluster.etcd) is not None:
        await asyncio.sleep(WATCH_SECONDS)
        if etcd.is_running:
            is_told = False
        elif not is_told:
            _tell_exit("etcd", etcd.status, etcd.log, json)
            is_told = not restart or await _start_again(cluster.start_etcd, json)


async def _start_again(start: Callable[[], Awaitable[None]], json: bool) -> bool:
    """Whether it goes; if not, it may be tried again after a pause, which is over."""
    try:
        await start()
    except LockstepError as error:
        _tell_trouble(error.message, json)
    except OSError as error:
        _tell_trouble(str(error), json)
    else:
        return True
    await asyncio.sleep(RESTART_PAUSE_SECONDS)
    return False


def _tell_exit(name: str, status: int | None, log: Path, json: bool) -> None:
    if json:
        print_json_line({"exited": name, "status": status})
    else:
        console.print(Text.assemble((f"{name} exited with status {status}", "red"), f" (log: {log})"))
