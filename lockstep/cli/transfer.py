"""`lockstep transfer`: moves messages from one queue to others, in transactions.

Law: a message is in its source or in every target, never in between and never twice; what is in doubt is resolved first.
"""

import time
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lockstep.cli.connection import DEFAULT_BROKERS, Brokers, Json, console, errors, print_json, with_client
from lockstep.client import (
    Client,
    Consumer,
    ErrorCode,
    Message,
    OutgoingMessage,
    Rejected,
    Session,
    Transaction,
)
from lockstep.client.command_batches import Confirmation
from lockstep.core.counted import counted

_FAILOVER = {
    ErrorCode.ROLLED_BACK,
    ErrorCode.STALE_DELIVERY,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNKNOWN_SESSION,
    ErrorCode.UNKNOWN_TRANSACTION,
}
"""Why an operation fails whose primary or session was lost: the same may go well the next time. Any other refusal stays one."""

QUIET_SECONDS = 2.0
"""A queue whose primary serves, and that sends nothing for so long, has nothing for us."""


@dataclass(slots=True)
class Moved:
    """What a transfer did."""

    messages: int = 0
    committed: int = 0
    rolled_back: int = 0
    resolved: int = 0
    """Commits that were in doubt until their outcome was asked for."""
    under_way: set[Transaction] = field(default_factory=set)


def transfer(
    source: Annotated[str, typer.Argument(help="Queue to take from.")],
    targets: Annotated[list[str], typer.Argument(help="Queues to move to; each gets every message.")],
    batch: Annotated[int, typer.Option(min=1, help="Messages in one transaction.")] = 100,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after so many; 0: all there are now.")
    ] = 0,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Move messages between queues in transactions, through any failover."""

    async def command(client: Client) -> None:
        async with client.session() as session:
            wanted = count or (await session.describe_queue(source)).length
            moved, left = Moved(), 0
            started = time.monotonic()
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            is_shown = errors.is_terminal and not json
            with Progress(*columns, console=errors, disable=not is_shown, transient=True) as progress:
                task = progress.add_task(f"{source} -> {', '.join(targets)}", total=wanted)
                async with await session.consume(source, credit=4 * batch) as consumer:
                    while moved.messages < wanted:
                        taken, left = await take_or_ask(
                            session, consumer, min(batch, wanted - moved.messages)
                        )
                        if not taken:
                            break
                        await move(session, taken, targets, moved)
                        progress.update(task, completed=moved.messages)
        seconds = time.monotonic() - started
        if left:
            errors.print(f"{counted(left, 'message')} left in {source}: held by others.", style="yellow")
        if json:
            print_json(
                {
                    "messages": moved.messages,
                    "committed": moved.committed,
                    "rolled_back": moved.rolled_back,
                    "resolved": moved.resolved,
                    "seconds": round(seconds, 3),
                }
            )
        else:
            console.print(
                f"Moved {counted(moved.messages, 'message')} from {source} to {', '.join(targets)} in"
                f" {counted(moved.committed, 'transaction')} ({moved.rolled_back} rolled back and repeated) and {seconds:.1f} s."
            )

    with_client(brokers, command)


async def take(consumer: Consumer, count: int, wait_seconds: float) -> list[Message]:
    """Up to `count` messages: waits for the first, and takes what has come with it."""
    first = await consumer.next(wait_seconds)
    taken = [] if first is None else [first]
    while len(taken) < count and (message := consumer.take()) is not None:
        taken.append(message)
    return taken


async def take_or_ask(session: Session, consumer: Consumer, count: int) -> tuple[list[Message], int]:
    """As `take`, with patience; if none comes, how many messages are in the queue all the same.

    Nothing may have come because the queue's set had no primary: that is waited for. Raises `Rejected` when none is found.
    """
    if taken := await take(consumer, count, QUIET_SECONDS):
        return taken, 0
    left = (await session.describe_queue(consumer.queue)).length
    if left and (taken := await take(consumer, count, QUIET_SECONDS)):
        return taken, 0
    return [], left


async def move(session: Session, taken: list[Message], targets: list[str], moved: Moved) -> str | None:
    """One transaction; its id, or None when a failover rolled it back: its messages are back in the source.

    They are there as well when this raises `Rejected`: somebody refuses them, and would do so again.
    """
    transaction = session.transaction()
    moved.under_way.add(transaction)
    published: list[tuple[str, Confirmation]] = []
    try:
        async with transaction:
            await transaction.accept(*taken)
            for target in targets:
                copies = [
                    OutgoingMessage(
                        message.properties,
                        message.body,
                        message.is_durable,
                        message.ttl_ms,
                        priority=message.priority,
                    )
                    for message in taken
                ]
                published.append((target, await transaction.publish(target, copies)))
    except Rejected as rejected:
        if rejected.code not in (ErrorCode.ROLLED_BACK, ErrorCode.STALE_DELIVERY):
            raise
        cause = rejected.__cause__
        if isinstance(cause, Rejected) and cause.code not in _FAILOVER:
            raise _refused(cause, taken[0].queue, published, moved.messages) from cause
        moved.rolled_back += 1
        return None
    finally:
        moved.under_way.discard(transaction)
        moved.resolved += transaction.was_in_doubt
    moved.committed += 1
    moved.messages += len(taken)
    return transaction.id


def _refused(cause: Rejected, source: str, published: list[tuple[str, Confirmation]], moved: int) -> Rejected:
    """Why nothing more is moved, with the name of the queue that does not take it."""
    refusing = (
        target for target, sent in published if sent.done() and not sent.cancelled() and sent.exception()
    )
    target = next(refusing, source)
    return Rejected(
        cause.code,
        f"{target} refuses messages of {source}, after {moved} were moved: {cause.message}",
        queue=target,
    )
