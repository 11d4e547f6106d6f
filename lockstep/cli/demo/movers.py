"""The movers: clients that take messages from one queue and put each into two others, in transactions, until all are moved."""

import asyncio
import time
from dataclasses import dataclass, field

from lockstep.cli.transfer import Moved, move, take
from lockstep.client import InDoubt, TransactionState, connect
from lockstep.core.ids import Epoch, parse_transaction_id


@dataclass(slots=True)
class Tally:
    """What all movers did, together."""

    wanted: int
    moved: Moved = field(default_factory=Moved)
    unresolved: int = 0
    """In doubt, and nobody could tell."""
    first_commit: dict[Epoch, float] = field(default_factory=dict)
    """When the first transaction of an epoch was known to be committed (monotonic seconds)."""
    last_progress: float = field(default_factory=time.monotonic)

    @property
    def in_doubt(self) -> int:
        """Transactions that were told to commit and have no answer yet."""
        return sum(t.state is TransactionState.IN_DOUBT for t in self.moved.under_way)

    @property
    def is_done(self) -> bool:
        return self.moved.messages >= self.wanted


async def run_mover(addresses: list[str], source: str, targets: list[str], batch: int, tally: Tally) -> None:
    """One client, with a connection and a session of its own."""
    async with (
        await connect(addresses) as client,
        client.session() as session,
        await session.consume(source, credit=2 * batch) as consumer,
    ):
        while not tally.is_done:
            taken = await take(consumer, batch, wait_seconds=0.2)
            if not taken:
                continue
            try:
                transaction_id = await move(session, taken, targets, tally.moved)
            except InDoubt:
                tally.unresolved += 1
            else:
                if transaction_id is not None:
                    tally.last_progress = time.monotonic()
                    _, (_, epoch) = parse_transaction_id(transaction_id)
                    tally.first_commit.setdefault(epoch, tally.last_progress)


async def run_movers(
    count: int, addresses: list[str], source: str, targets: list[str], batch: int, tally: Tally
) -> None:
    """`count` movers at the same time."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(run_mover(addresses, source, targets, batch, tally))
