"""`lockstep promote` and `lockstep cluster`: what operators decide."""

from typing import Annotated

import typer

from lockstep.cli.connection import DEFAULT_BROKERS, Brokers, Json, console, print_json, with_client
from lockstep.client import Client, ErrorCode, Rejected

app = typer.Typer(no_args_is_help=True)
SetName = Annotated[str, typer.Argument(help="Resource set.")]
BrokerName = Annotated[str, typer.Argument(help="Broker id.")]


@app.callback()
def group() -> None:
    """Keeps `cluster` a group although it has one command."""


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
