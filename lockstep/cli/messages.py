"""`lockstep publish`, `consume`, `browse` and `outcome`: messages and transactions by hand."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    SECONDS_MAX,
    Brokers,
    Json,
    console,
    fail,
    print_json,
    print_json_line,
    with_client,
)
from lockstep.client import Client, Consumer, ErrorCode, InDoubt, LockstepError, Message, Rejected, Session
from lockstep.core.counted import counted
from lockstep.core.deaths import DeathReason, Deaths
from lockstep.core.ids import ORDINAL_MAX, index_of, place
from lockstep.core.priority_levels import PRIORITY_DEFAULT, PRIORITY_MAX

Queue = Annotated[str, typer.Argument(help="Name of the queue.")]
BATCH = 500
"""Messages that go into one call, when they come from a file."""
_REASONS: dict[int, str] = {reason: reason.name.lower() for reason in DeathReason}
SERVED_SECONDS = 1.0
"""A primary that has to be waited for longer was not there before."""


def publish(
    target: Annotated[str, typer.Argument(help="Queue, or routing key with --exchange.")],
    body: Annotated[list[str] | None, typer.Argument(help="Bodies, one message each.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One message per line of this file; - is stdin.")
    ] = None,
    exchange: Annotated[str, typer.Option(help="Publish through this exchange.")] = "",
    transient: Annotated[bool, typer.Option("--transient", help="Not durable.")] = False,
    ttl_ms: Annotated[int, typer.Option(min=0, help="Expires after this; 0: never.")] = 0,
    priority: Annotated[
        int, typer.Option(min=0, max=PRIORITY_MAX, help="Higher ones are delivered first.")
    ] = PRIORITY_DEFAULT,
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
            answers = await _publish(
                lambda some: session.publish_soon(
                    target,
                    some,
                    exchange=exchange,
                    durable=not transient,
                    ttl_ms=ttl_ms,
                    priority=priority,
                ),
                [bodies[at : at + BATCH] for at in range(0, len(bodies), BATCH)],
            )
        check_published(answers, len(bodies))
        if json:
            print_json({"target": target, "messages": len(bodies)})
        else:
            console.print(f"Published {counted(len(bodies), 'message')} to {target}.")

    with_client(brokers, command)


Answers = Sequence[tuple[int, BaseException | None]]
"""For each call: of how many messages, and what came of it; None: they are published."""


async def _publish(
    send: Callable[[list[bytes]], Awaitable[Awaitable[int]]], batches: list[list[bytes]]
) -> Answers:
    """Of all calls that were made: with one that cannot be made they end."""
    sent: list[Awaitable[int]] = []
    failed: list[BaseException] = []
    for batch in batches:
        try:
            sent.append(await send(batch))
        except LockstepError as error:
            failed.append(error)
            break
    answers = [*await asyncio.gather(*sent, return_exceptions=True), *failed]
    errors = [answer if isinstance(answer, BaseException) else None for answer in answers]
    return [(len(batch), error) for batch, error in zip(batches, errors, strict=False)]


def check_published(answers: Answers, wanted: int) -> None:
    """Raises what a call failed with; and says what is published all the same, for it would be there twice if all were sent
    again."""
    errors = [error for _, error in answers if error is not None]
    if not errors:
        return
    # Whatever else is known, part of it is not.
    error = next((error for error in errors if isinstance(error, InDoubt)), errors[0])
    published = sum(count for count, failed in answers if failed is None)
    doubtful = sum(count for count, failed in answers if isinstance(failed, InDoubt))
    if not isinstance(error, LockstepError) or not published:
        raise error
    unknown = f", {doubtful:,} more in doubt" if doubtful else ""
    text = f"{error.message}; published: {published:,} of {counted(wanted, 'message')}{unknown}"
    raise type(error)(error.code, text, **error.details) from error


def _lines(file: Path) -> list[bytes]:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"cannot read {file}: {error.strerror}") from error
    return content.splitlines()


def consume(
    queue: Queue,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Stop after so many; 0: go on.")] = 0,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait", min=0, max=SECONDS_MAX, help="Stop when nothing came for so long; 0: go on."),
    ] = 0.0,
    credit: Annotated[int, typer.Option(min=1, help="Messages on their way at a time.")] = 100,
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
                    message = await next_within(session, consumer, wait_seconds)
                if message is None:
                    break
                taken += 1
                if json:
                    print_json_line(
                        {
                            "position": message.position,
                            "body": message.body,
                            "delivery_count": message.delivery_count,
                            "deaths": shown_deaths(message.deaths),
                            "priority": message.priority,
                        }
                    )
                else:
                    sys.stdout.write(message.body.decode(errors="replace") + "\n")
                    sys.stdout.flush()
                accepted = [waiting for waiting in accepted if not waiting.done() or waiting.result() < 0]
                accepted.append(message.accept())
            await asyncio.gather(*accepted)

    with_client(brokers, command)


def shown_deaths(deaths: Deaths) -> list[dict[str, object]]:
    """Why a message is a dead letter, the last death first, with the reasons that AMQP clients are told; times in milliseconds
    since the Unix epoch.
    """
    return [
        {
            "queue": death.queue,
            "reason": _REASONS.get(death.reason, death.reason),
            "count": death.count,
            "first_ms": death.first_ms,
            "last_ms": death.last_ms,
        }
        for death in deaths
    ]


async def next_within(session: Session, consumer: Consumer, seconds: float) -> Message | None:
    """The next message; None: nothing came for so long (0: for ever) of a queue whose primary serves.

    Raises `Rejected` when no primary is found: nobody can tell what is in the queue.
    """
    clock = asyncio.get_running_loop().time
    if not seconds:
        return await consumer.__anext__()
    while (message := await consumer.next(seconds)) is None:
        asked = clock()
        await session.describe_queue(consumer.queue)
        if clock() - asked < SERVED_SECONDS:
            break
    return message


def browse(
    queue: Queue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Most messages to show.")] = 20,
    after: Annotated[
        str, typer.Option(help="Only behind this position, as it is shown here or in JSON.")
    ] = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Show messages of a queue without taking them."""
    begin = position_from(after) if after else 0

    async def command(client: Client) -> None:
        async with client.session() as session:
            async for message in session.browse(queue, after=begin, limit=limit):
                if json:
                    print_json_line(
                        {
                            "position": message.position,
                            "body": message.body,
                            "properties": message.properties,
                            "delivery_count": message.delivery_count,
                            "is_durable": message.is_durable,
                            "deaths": shown_deaths(message.deaths),
                            "priority": message.priority,
                        }
                    )
                else:
                    shown = f"{index_of(message.position)}.{message.position & ORDINAL_MAX}"
                    sys.stdout.write(f"{shown}\t{message.body.decode(errors='replace')}\n")

    with_client(brokers, command)


def position_from(text: str) -> int:
    """A position as people are shown it, index.ordinal, or as JSON has it; ends the command if it is neither."""
    index, dot, ordinal = text.partition(".")
    parts = (index, ordinal) if dot else (index,)
    position = -1
    if all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        with contextlib.suppress(ValueError):
            position = place(int(index), int(ordinal)) if dot else int(index)
    if not 0 <= position < 1 << 64:
        sentence = f"--after takes a position, such as 120.0 or 2013265920, not {text[:80]!r}"
        fail(Rejected(ErrorCode.INVALID_ARGUMENT, sentence))
    return position


def outcome(
    transaction_id: Annotated[str, typer.Argument(help="As the client got it: set/index.epoch.")],
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """What became of a transaction. One that is open ends with the session that began it, or by its time-out."""

    async def command(client: Client) -> None:
        found = await client.get_outcome(transaction_id)
        state = found.state.name.lower().replace("_", " ")
        if json:
            print_json({"transaction": transaction_id, "outcome": state, "epoch": found.epoch})
        else:
            console.print(f"Transaction {transaction_id}: {state}.")

    with_client(brokers, command)
