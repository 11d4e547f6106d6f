"""`lockstep promote` and `lockstep cluster`: what operators decide."""

from typing import Annotated, Any

import typer
from rich.text import Text

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    SECONDS_MAX,
    Brokers,
    Json,
    console,
    print_json,
    show_table,
    table,
    with_client,
)
from lockstep.client import Client, ErrorCode, Rejected
from lockstep.core.counted import counted
from lockstep.wire.v1 import cluster_pb2 as pb

app = typer.Typer(no_args_is_help=True)
SetName = Annotated[str, typer.Argument(help="Resource set.")]
BrokerName = Annotated[str, typer.Argument(help="Broker id.")]


def promote(
    set_name: SetName, broker: BrokerName, brokers: Brokers = DEFAULT_BROKERS, json: Json = False
) -> None:
    """Hand a resource set over to one of its in-sync brokers; returns when that one serves."""

    async def command(client: Client) -> None:
        promoted = await client.administration.promote(set_name, broker)
        if json:
            print_json({"set": set_name, "primary": promoted.primary, "epoch": promoted.epoch})
        else:
            console.print(f"{promoted.primary} is primary of {set_name} in epoch {promoted.epoch}.")

    with_client(brokers, command)


def step_down(
    address: Annotated[str, typer.Argument(help="host:port of the broker that is about to be stopped.")],
    seconds: Annotated[float, typer.Option(min=0, max=SECONDS_MAX, help="How long to wait.")] = 60.0,
    json: Json = False,
) -> None:
    """Before a broker is stopped: hand over what it leads, wait until those that stay are enough. Exit status 1: they are not."""

    async def command(client: Client) -> None:
        obstacles = await client.administration.step_down(address, seconds)
        if json:
            print_json({"address": address, "may_stop": not obstacles, "obstacles": obstacles})
        else:
            for one in obstacles:
                console.print(one)
            if not obstacles:
                console.print(f"{address} may stop.")
        if obstacles:
            raise typer.Exit(1)

    with_client(address, command)


@app.command("recover")
def recover(
    set_name: SetName,
    broker: Annotated[str, typer.Argument(help="Broker whose disk is taken.")],
    accept_data_loss: Annotated[
        bool,
        typer.Option(
            "--accept-data-loss", help="What only the lost disks had is lost. There is no way back."
        ),
    ] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Start a set again whose in-sync disks are all lost, from the disk of a broker that is left."""

    async def command(client: Client) -> None:
        if not accept_data_loss:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"starting {set_name} from the disk of {broker} loses what only other disks had:"
                " say so with --accept-data-loss",
            )
        recovered = await client.administration.accept_data_loss(set_name, broker)
        if json:
            print_json(
                {
                    "set": set_name,
                    "broker": broker,
                    "epoch": recovered.epoch,
                    "generation": recovered.generation,
                    "log_end": recovered.log_end,
                }
            )
        else:
            console.print(
                f"Set {set_name} goes on from the disk of {broker} up to index {recovered.log_end},"
                f" in epoch {recovered.epoch}."
            )

    with_client(brokers, command)


@app.command("rebuild-map")
def rebuild_map(
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Write the map; without it, or with --dry-run, nothing changes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what the disks hold and what the map would be.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            help="Broker whose disk is given up, or set:broker for that set alone: what only it has is lost. May be repeated.",
        ),
    ] = None,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Give the cluster its map again after etcd has lost its data, from what the disks of all brokers remember."""

    async def command(client: Client) -> None:
        if rebuild == dry_run:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                "see what would be done with --dry-run, then say --rebuild: a new map ends whatever the old one said",
            )
        response = await client.administration.rebuild_map(rebuild=rebuild, without=without or ())
        if json:
            print_json(_rebuilt_as_json(response))
        else:
            _show_rebuilt(response)

    with_client(brokers, command)


_VERDICTS = {
    pb.RebuildMapResponse.VERDICT_LED: "led",
    pb.RebuildMapResponse.VERDICT_CURRENT: "current",
    pb.RebuildMapResponse.VERDICT_REBUILT: "rebuilt",
    pb.RebuildMapResponse.VERDICT_STUCK: "stuck",
    pb.RebuildMapResponse.VERDICT_UNHEARD: "unheard",
}


def _rebuilt_as_json(response: pb.RebuildMapResponse) -> dict[str, Any]:
    return {
        "is_written": bool(response.generation),
        "generation": response.generation,
        "names": response.names,
        "disputed_names": list(response.disputed_names),
        "silent_brokers": list(response.silent_brokers),
        "sets": [
            {
                "set": one.name,
                "verdict": _VERDICTS.get(one.verdict, "unknown"),
                "epoch": one.epoch,
                "in_sync": list(one.in_sync),
                "given_up": list(one.given_up),
                "is_led": one.is_led,
                "problem": one.problem,
                "disks": [
                    {
                        "broker": disk.broker,
                        "disk": disk.disk,
                        "last_epoch": disk.last_epoch,
                        "log_end": disk.log_end,
                        "highest_epoch": disk.highest_epoch,
                        "generation": disk.generation,
                        "map_revision": disk.map_revision,
                        "trouble": disk.trouble,
                    }
                    for disk in one.disks
                ],
            }
            for one in response.sets
        ],
    }


def _show_rebuilt(response: pb.RebuildMapResponse) -> None:
    made = table("SET", "BROKER", "DISK", "#LAST EPOCH", "#LOG END", "#FENCED", "#REVISION", "IN THE MAP", "")
    for one in response.sets:
        for place, disk in enumerate(one.disks):
            made.add_row(
                one.name if place == 0 else "",
                disk.broker,
                disk.disk,
                str(disk.last_epoch),
                str(disk.log_end),
                str(disk.highest_epoch),
                str(disk.map_revision),
                "yes" if disk.broker in one.in_sync else "no" if one.in_sync else "",
                Text(disk.trouble, style="red"),
            )
    show_table(made)
    console.print()
    for broker in response.silent_brokers:
        console.print(f"{broker} could not be asked.", style="red")
    for one in response.sets:
        is_well = _VERDICTS.get(one.verdict, "stuck") != "stuck"
        console.print(_fate(one, is_written=bool(response.generation)), style=None if is_well else "red")
    if response.generation:
        console.print(
            f"Generation {response.generation}; {counted(response.names, 'name')} again in the directory."
        )
    for name in response.disputed_names:
        console.print(f"{name} is a name of more than one set.", style="red")


def _fate(one: pb.RebuildMapResponse.RebuiltSet, is_written: bool) -> str:
    """What became of a set, or would."""
    match one.verdict:
        case pb.RebuildMapResponse.VERDICT_LED:
            return f"Set {one.name} is led, and left alone."
        case pb.RebuildMapResponse.VERDICT_CURRENT:
            return f"Set {one.name} is as etcd has it, and left alone."
        case pb.RebuildMapResponse.VERDICT_UNHEARD:
            return (
                f"Set {one.name} is left alone: none of its disks in sync could be asked. If it does not start when they are"
                " back, run this again."
            )
        case pb.RebuildMapResponse.VERDICT_REBUILT:
            verb = "goes on" if is_written else "would go on"
            given_up = f", without {', '.join(one.given_up)}" if one.given_up else ""
            led = "" if one.is_led or not is_written else "; nobody leads it yet"
            return (
                f"Set {one.name} {verb} above epoch {one.epoch} from {', '.join(one.in_sync)}{given_up}{led}."
            )
        case _:
            return f"Set {one.name} cannot be rebuilt: {one.problem}."
