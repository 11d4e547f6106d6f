"""`lockstep set`: resource sets."""

from typing import Annotated

import typer
from rich.text import Text

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    Brokers,
    Json,
    console,
    print_json,
    show_table,
    table,
    with_client,
)
from lockstep.cli.status import as_json
from lockstep.client import Client, ErrorCode, LockstepError

app = typer.Typer(no_args_is_help=True)

# In this group --brokers names the brokers of a set; where the cluster is, is said by --at.
At = Annotated[
    str,
    typer.Option(
        "--at", envvar="LOCKSTEP_BROKERS", help="Addresses of brokers, host:port, separated by commas."
    ),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name of the new set.")],
    brokers: Annotated[str, typer.Option("--brokers", help="Broker ids, the first primary first: B1,B2,B3.")],
    min_in_sync: Annotated[
        int,
        typer.Option(
            min=0,
            max=99,
            help="Fewest members with which anything completes; 0: 1 up to two brokers, else 2.",
        ),
    ] = 0,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Leave a set of that name as it is, and succeed.")
    ] = False,
    at: At = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Create a resource set."""

    async def command(client: Client) -> None:
        ids = [broker.strip() for broker in brokers.split(",") if broker.strip()]
        try:
            created = await client.administration.create_set(name, ids, min_in_sync)
        except LockstepError as error:
            # Of an earlier try of this call, perhaps.
            if not if_absent or error.code is not ErrorCode.ALREADY_EXISTS:
                raise
            if json:
                print_json({"set": name, "is_new": False})
            else:
                console.print(f"Set {name} is there.")
            return
        if json:
            print_json({"set": created.name, "brokers": ids, "min_in_sync": created.min_in_sync})
        else:
            console.print(f"Created set {name} on {', '.join(ids)}, at least {created.min_in_sync} in sync.")

    with_client(at, command)


@app.command("list")
def list_sets(brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Resource sets, with their primary and in-sync members."""

    async def command(client: Client) -> None:
        found = await client.administration.status()
        if json:
            print_json(as_json(found)["sets"])
            return
        sets = table("SET", "#EPOCH", "PRIMARY", "IN SYNC", "BROKERS", "#MIN")
        for entry in found.view.sets:
            primary = Text(entry.primary if entry.is_led else entry.primary or "-")
            if not entry.is_led:
                primary.append(" (not led)", style="yellow")
            sets.add_row(
                entry.name,
                str(entry.epoch),
                primary,
                ", ".join(entry.in_sync),
                ", ".join(entry.brokers),
                str(entry.min_in_sync),
            )
        show_table(sets)

    with_client(brokers, command)
