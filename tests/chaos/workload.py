"""Numbered senders and movers in transactions, and the check of what became of every number.

Law: a number is sent again only if its transaction certainly did not commit; so at the end each number is in both output queues
exactly once, whatever was killed meanwhile. What nobody could tell counts as in doubt and may be there or not, but never once.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from lockstep.client.client import Client
from lockstep.client.consumer import Consumer, Message
from lockstep.client.session import Session
from lockstep.client.transaction import Transaction
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import InDoubt, Rejected

BATCH = 3
"""Messages of one sender's transaction, and at most of one mover's."""
PACE_SECONDS = 0.01
"""Between two transactions of a sender: processes that start again need some of the processors, too."""


@dataclass(slots=True)
class Report:
    """What a workload did."""

    committed: int = 0
    rolled_back: int = 0
    asked: int = 0
    """Commits whose answer was lost, and whose outcome was asked for."""
    in_doubt: int = 0
    """Of them, those that nobody could tell in time."""
    killed_in_flight: int = 0
    """Transactions under way at the moments of kills."""
    longest_gap_seconds: float = 0.0
    """Longest time between two commits."""
    errors: Counter[str] = field(default_factory=Counter)


class Workload:
    """Lives for one test; `run` it, do harm, `finish` it, `check` it. All its queues are in one set."""

    def __init__(self, client: Client, set_name: str, *, senders: int = 3, movers: int = 2) -> None:
        self.client = client
        self.set_name = set_name
        self.input = f"{set_name}-in"
        self.outputs = (f"{set_name}-out-1", f"{set_name}-out-2")
        self.report = Report()
        self.confirmed: set[bytes] = set()
        """Numbers whose sending committed."""
        self.doubtful: set[bytes] = set()
        self.in_flight: set[object] = set()
        """Transactions under way."""
        self._senders, self._movers = senders, movers
        self._is_sending = True
        self._is_moving = True
        self._last_commit = time.monotonic()

    async def declare(self) -> None:
        async with self.client.session() as session:
            for queue in (self.input, *self.outputs):
                await session.declare_queue(queue, QueueOptions(), set_name=self.set_name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Senders and movers run inside the block; behind it everything sent was moved."""
        await self.declare()
        self._last_commit = time.monotonic()
        senders = [asyncio.create_task(self._send(number)) for number in range(self._senders)]
        movers = [asyncio.create_task(self._move()) for _ in range(self._movers)]
        try:
            yield
            self._is_sending = False
            async with asyncio.timeout(120):
                await asyncio.gather(*senders)
                while await self._count(self.input):
                    for mover in movers:
                        if mover.done():
                            mover.result()
                    await asyncio.sleep(0.1)
                self._is_moving = False
                await asyncio.gather(*movers)
        finally:
            for task in (*senders, *movers):
                task.cancel()
            await asyncio.gather(*senders, *movers, return_exceptions=True)

    async def note_kill(self, count: int = 1) -> None:
        """Call right before harm is done: returns when so many transactions are under way, which then count as hit."""
        deadline = time.monotonic() + 30
        while len(self.in_flight) < count:
            assert time.monotonic() < deadline, f"{len(self.in_flight)} transactions are under way"
            await asyncio.sleep(0.001)
        self.report.killed_in_flight += len(self.in_flight)

    async def committed_since(self, count: int, seconds: float = 60.0) -> None:
        """Returns when `count` more transactions have committed: the cluster works again."""
        target = self.report.committed + count
        deadline = time.monotonic() + seconds
        while self.report.committed < target:
            assert time.monotonic() < deadline, (
                f"only {self.report.committed} of {target} commits in {seconds:g} s: {self.report}"
            )
            await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Nothing lost, nothing twice, nothing torn."""
        first, second = [Counter(await self._bodies(queue)) for queue in self.outputs]
        self._check_numbers(first, second)

    # Inside

    def _check_numbers(self, first: Counter[bytes], second: Counter[bytes]) -> None:
        """What the two outputs show."""
        twice = {body for counted in (first, second) for body, count in counted.items() if count > 1}
        assert not twice, f"duplicated: {sorted(twice)[:10]} of {len(twice)}"
        torn = first.keys() ^ second.keys()
        assert not torn, f"torn: {sorted(torn)[:10]} of {len(torn)}"
        lost = self.confirmed - first.keys()
        assert not lost, f"lost: {sorted(lost)[:10]} of {len(lost)}"
        invented = first.keys() - self.confirmed - self.doubtful
        assert not invented, f"never confirmed, but there: {sorted(invented)[:10]} of {len(invented)}"
        by_transaction: Counter[bytes] = Counter(body.rpartition(b".")[0] for body in first)
        split = {name for name, count in by_transaction.items() if count != BATCH}
        assert not split, f"parts of transactions: {sorted(split)[:10]}"

    async def _send(self, sender: int) -> None:
        sequence = 0
        async with self.client.session() as session:
            while self._is_sending:
                bodies = [b"%d/%06d.%d" % (sender, sequence, part) for part in range(BATCH)]
                transaction = session.transaction()
                result = await self._commit(transaction, session, bodies, (self.input,), ())
                if result is True:
                    self.confirmed.update(bodies)
                elif result is None:
                    self.doubtful.update(bodies)
                if result is not False:
                    sequence += 1
                await asyncio.sleep(PACE_SECONDS)

    async def _move(self) -> None:
        async with self.client.session() as session:
            consumer = await session.consume(self.input, credit=50)
            while self._is_moving:
                messages = await self._some(consumer)
                if messages:
                    bodies = [message.body for message in messages]
                    await self._commit(session.transaction(), session, bodies, self.outputs, messages)
            await consumer.close()

    async def _some(self, consumer: Consumer) -> list[Message]:
        first = await consumer.next(0.2)
        messages = [first] if first is not None else []
        while len(messages) < BATCH and (message := consumer.take()) is not None:
            messages.append(message)
        return messages

    async def _commit(
        self,
        transaction: Transaction,
        session: Session,
        bodies: list[bytes],
        queues: Iterable[str],
        messages: Iterable[Message],
    ) -> bool | None:
        """One transaction: True committed, False certainly not, None in doubt."""
        self.in_flight.add(transaction)
        try:
            async with transaction:
                for queue in queues:
                    await transaction.publish(queue, bodies)
                await transaction.accept(*messages)
        except InDoubt as doubt:
            self.report.in_doubt += 1
            self.report.errors[doubt.code.name] += 1
            return None
        except Rejected as rejected:
            self.report.rolled_back += 1
            self.report.errors[rejected.code.name] += 1
            await asyncio.sleep(0.01)
            return False
        finally:
            self.in_flight.discard(transaction)
            self.report.asked += transaction.was_in_doubt
        self.report.committed += 1
        now = time.monotonic()
        self.report.longest_gap_seconds = max(self.report.longest_gap_seconds, now - self._last_commit)
        self._last_commit = now
        return True

    async def _count(self, queue: str) -> int:
        async with self.client.session() as session:
            described = await session.describe(self.set_name)
        return next(one.length for one in described.queues if one.name == queue)

    async def _bodies(self, queue: str) -> list[bytes]:
        async with self.client.session() as session:
            return [message.body async for message in session.browse(queue)]
