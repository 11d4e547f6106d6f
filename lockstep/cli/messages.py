"""`lockstep publish`, `consume`, `browse` and `outcome`: messages and transactions by hand."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    SECONDS_MAX,
    Brokers,
    Json,
    console,
    print_json,
    print_json_line,
    with_client,
)
from lockstep.client import Client, ErrorCode, Rejected

Queue = Annotated[str, typer.Argument(help="Name of the queue.")]
BATCH = 500
"""Messages that go into one call, when they come from a file."""


def publish(
    target: Annotated[str, typer.Argument(help="Queue, or routing key with --exchange.")],
    body: Annotated[list[str] | None, typer.Argument(help="Bodies, one message each.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One message per line of this file; - is stdin.")
    ] = None,
    exchange: Annotated[str, typer.Option(help="Publish through this exchange.")] = "",
    transient: Annotated[bool, typer.Option("--transient", help="Not durable.")] = False,
    ttl_ms: Annotated[int, typer.Option(help="Expires after this; 0: never.")] = 0,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Publish messages; returns when they are durable at every in-sync broker."""

    async def command(client: Client) -> None:
        bodies = [os.fsencode(text) for text in body or ()]
        if file is not None:
            bodies += _lines(file)
        if not bodies:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "nothing to publish: give bodies, or --file")
        async with client.session() as session:
            sent = [
                await session.publish_soon(
                    target, bodies[at : at + BATCH], exchange=exchange, durable=not transient, ttl_ms=ttl_ms
                )
                for at in range(0, len(bodies), BATCH)
            ]
            await asyncio.gather(*sent)
        if json:
            print_json({"target": target, "messages": len(bodies)})
        else:
            console.print(f"Published {len(bodies)} message{'s' if len(bodies) > 1 else ''} to {target}.")

    with_client(brokers, command)


def _lines(file: Path) -> list[bytes]:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"cannot read {file}: {error.strerror}") from error
    return content.splitlines()


def consume(
    queue: Queue,
    count: Annotated[int, typer.Option("--count", "-n", help="Stop after so many; 0: go on.")] = 0,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait", min=0, max=SECONDS_MAX, help="Stop when nothing came for so long; 0: go on."),
    ] = 0.0,
    credit: Annotated[int, typer.Option(help="Messages on their way at a time.")] = 100,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Take messages from a queue, print their bodies, and accept them."""

    async def command(client: Client) -> None:
        taken = 0
        accepted: list[asyncio.Future[int]] = []
        limit = min(credit, count) if count else credit
        async with client.session() as session, await session.consume(queue, credit=limit) as consumer:
            while not count or taken < count:
                message = consumer.take()
                if message is None:
                    message = (
                        await consumer.next(wait_seconds) if wait_seconds else await consumer.__anext__()
                    )
                if message is None:
                    break
                taken += 1
                if json:
                    print_json_line(
                        {
                            "position": message.position,
                            "body": message.body,
                            "delivery_count": message.delivery_count,
                        }
                    )
                else:
                    sys.stdout.write(message.body.decode(errors="replace") + "\n")
                    sys.stdout.flush()
                accepted = [waiting for waiting in accepted if not waiting.done() or waiting.result() < 0]
                accepted.append(message.accept())
            await asyncio.gather(*accepted)

    with_client(brokers, command)


def browse(
    queue: Queue,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Most messages to show.")] = 20,
    after: Annotated[int, typer.Option(help="Only behind this position.")] = 0,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Show messages of a queue without taking them."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            async for message in session.browse(queue, after=after, limit=limit):
                if json:
                    print_json_line(
                        {
                            "position": message.position,
                            "body": message.body,
                            "properties": message.properties,
                            "delivery_count": message.delivery_count,
                            "is_durable": message.is_durable,
                        }
                    )
                else:
                    place = f"{message.position >> 24}.{message.position & 0xFFFFFF}"
                    sys.stdout.write(f"{place}\t{message.body.decode(errors='replace')}\n")

    with_client(brokers, command)


def outcome(
    transaction_id: Annotated[str, typer.Argument(help="As the client got it: set/index.epoch.")],
    fence: Annotated[bool, typer.Option("--fence", help="If it is open, roll it back first.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """What became of a transaction."""

    async def command(client: Client) -> None:
        found = await client.get_outcome(transaction_id, fence=fence)
        state = found.state.name.lower().replace("_", " ")
        if json:
            print_json({"transaction": transaction_id, "outcome": state, "epoch": found.epoch})
        else:
            console.print(f"Transaction {transaction_id}: {state}.")

    with_client(brokers, command)
