"""`lockstep queue`: queues."""

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
from lockstep.client import Client, QueueOptions
from lockstep.core.counted import counted

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the queue.")]
SetName = Annotated[str, typer.Option("--set", help="Resource set; may be left out if there is one only.")]


@app.command("declare")
def declare(
    name: Name,
    set_name: SetName = "",
    transient: Annotated[bool, typer.Option("--transient", help="Gone when all brokers stop.")] = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Deleted with its last consumer.")
    ] = False,
    length_max: Annotated[int, typer.Option(min=0, help="Most messages; 0: no limit.")] = 0,
    bytes_max: Annotated[int, typer.Option(min=0, help="Most bytes; 0: no limit.")] = 0,
    evict: Annotated[
        bool, typer.Option("--evict", help="At a limit drop the oldest, not the newest.")
    ] = False,
    ttl_ms: Annotated[int, typer.Option(min=0, help="Messages expire after this; 0: never.")] = 0,
    dead_letter_exchange: Annotated[
        str | None,
        typer.Option(help="Where dead letters go; empty: the default exchange, as with a key alone."),
    ] = None,
    dead_letter_key: Annotated[
        str, typer.Option(help="Routing key of dead letters; empty: the queue's name.")
    ] = "",
    delivery_count_max: Annotated[
        int, typer.Option(min=0, help="Failed deliveries before a dead letter; 0: any.")
    ] = 0,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Declare a queue; nothing happens if the same one exists."""
    options = QueueOptions(
        is_durable=not transient,
        is_auto_delete=auto_delete,
        length_max=length_max,
        bytes_max=bytes_max,
        is_evicting=evict,
        message_ttl_ms=ttl_ms,
        dead_letter_exchange=dead_letter_exchange,
        dead_letter_key=dead_letter_key,
        delivery_count_max=delivery_count_max,
    )

    async def command(client: Client) -> None:
        async with client.session() as session:
            queue_id = await session.declare_queue(name, options, set_name=set_name)
        print_json({"queue": name, "id": queue_id}) if json else console.print(f"Declared queue {name}.")

    with_client(brokers, command)


@app.command("list")
def list_queues(set_name: SetName = "", brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Queues of one resource set, or of all."""

    async def command(client: Client) -> None:
        status = await client.administration.status()
        names = [set_name] if set_name else [entry.name for entry in status.view.sets]
        async with client.session() as session:
            answers = await ask_sets(names, session.describe)
        found = [(name, queue) for name, described in answers.said.items() for queue in described.queues]
        if json:
            print_json(
                [
                    {
                        "set": name,
                        "queue": queue.name,
                        "is_durable": queue.is_durable,
                        "length": queue.length,
                        "bytes": queue.bytes,
                        "held": queue.held,
                        "consumers": queue.consumers,
                    }
                    for name, queue in found
                ]
            )
            answers.check()
            return
        queues = table("SET", "QUEUE", "DURABLE", "#MESSAGES", "#BYTES", "#HELD", "#CONSUMERS")
        for name, queue in found:
            durable = "yes" if queue.is_durable else "no"
            figures = (queue.length, queue.bytes, queue.held, queue.consumers)
            queues.add_row(name, queue.name, durable, *map(str, figures))
        show_table(queues)
        answers.check()

    with_client(brokers, command)


@app.command("delete")
def delete(
    name: Name,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if nobody consumes from it.")] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if nothing is in it.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Delete a queue with its messages."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            count = await session.delete_queue(name, if_unused=if_unused, if_empty=if_empty)
        if json:
            print_json({"queue": name, "messages": count})
        else:
            console.print(f"Deleted queue {name} and {counted(count, 'message')} in it.")

    with_client(brokers, command)


@app.command("purge")
def purge(name: Name, brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Remove all messages that nobody holds."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            count = await session.purge_queue(name)
        if json:
            print_json({"queue": name, "messages": count})
        else:
            console.print(f"Removed {counted(count, 'message')} from queue {name}.")

    with_client(brokers, command)
