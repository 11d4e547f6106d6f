"""`lockstep exchange`: exchanges and bindings."""

from enum import StrEnum
from typing import Annotated

import typer

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
from lockstep.cli.set_answers import ask_sets
from lockstep.client import Client, ErrorCode, Rejected

app = typer.Typer(no_args_is_help=True)


class Kind(StrEnum):
    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


Name = Annotated[str, typer.Argument(help="Name of the exchange.")]
SetName = Annotated[str, typer.Option("--set", help="Resource set; may be left out if there is one only.")]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", help="name=value, of a headers exchange; may be repeated."),
]


@app.command("declare")
def declare(
    name: Name,
    kind: Annotated[Kind, typer.Option(help="How it routes.")] = Kind.DIRECT,
    set_name: SetName = "",
    transient: Annotated[bool, typer.Option("--transient", help="Gone when all brokers stop.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Declare an exchange; nothing happens if the same one exists."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            exchange_id = await session.declare_exchange(
                name, kind.value, durable=not transient, set_name=set_name
            )
        if json:
            print_json({"exchange": name, "id": exchange_id})
        else:
            console.print(f"Declared {kind.value} exchange {name}.")

    with_client(brokers, command)


@app.command("delete")
def delete(name: Name, brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Delete an exchange and its bindings."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            await session.delete_exchange(name)
        print_json({"exchange": name}) if json else console.print(f"Deleted exchange {name}.")

    with_client(brokers, command)


@app.command("list")
def list_exchanges(set_name: SetName = "", brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Exchanges of one resource set, or of all."""

    async def command(client: Client) -> None:
        status = await client.administration.status()
        names = [set_name] if set_name else [entry.name for entry in status.view.sets]
        async with client.session() as session:
            answers = await ask_sets(names, session.describe)
        found = [
            (name, *exchange) for name, described in answers.said.items() for exchange in described.exchanges
        ]
        if json:
            keys = ("set", "exchange", "kind", "is_durable")
            print_json([dict(zip(keys, exchange, strict=True)) for exchange in found])
            answers.check()
            return
        exchanges = table("SET", "EXCHANGE", "KIND", "DURABLE")
        for name, exchange, kind, is_durable in found:
            exchanges.add_row(name, exchange, kind, "yes" if is_durable else "no")
        show_table(exchanges)
        answers.check()

    with_client(brokers, command)


@app.command("bind")
def bind(
    name: Name,
    queue: Annotated[str, typer.Argument(help="Name of the queue, of the same set.")],
    key: Annotated[str, typer.Option(help="Binding key, or topic pattern.")] = "",
    argument: Arguments = None,
    unbind: Annotated[bool, typer.Option("--unbind", help="Remove the binding instead.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Bind a queue to an exchange."""

    async def command(client: Client) -> None:
        pairs = tuple(sorted(_pair(text) for text in argument or ()))
        async with client.session() as session:
            await (session.unbind if unbind else session.bind)(name, queue, key, pairs)
        if json:
            print_json({"exchange": name, "queue": queue, "key": key, "is_bound": not unbind})
        else:
            console.print(f"{'Unbound' if unbind else 'Bound'} queue {queue} and exchange {name}.")

    with_client(brokers, command)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"an argument is name=value, not {text!r}")
    return name, value
