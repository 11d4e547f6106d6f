"""The workload with an account of every attempt: what each transaction's caller heard of it against what the queues show.

Law: as of the account (`account.py`), and what a caller heard when asking again is the same. Readers look on meanwhile; the
committed log judges what they were shown (`committed_logs.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from lockstep.client.client import Client
from lockstep.client.consumer import Message
from lockstep.client.outcome import Outcome, OutcomeState
from lockstep.client.session import Session
from lockstep.client.session_settings import SessionSettings
from lockstep.client.transaction import Transaction
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import InDoubt, Rejected
from lockstep.runtime.channels import Channels
from tests.chaos.account import MARK, Account, Attempt, Shown
from tests.chaos.readers import Reader
from tests.chaos.workload import BATCH, PACE_SECONDS, Workload

IMPATIENT = SessionSettings(session_timeout_ms=4_000, give_up_ms=400)
"""Of senders where brokers die: they give up while a fault lasts, and ask for the outcomes of what they had in flight. Not where
brokers are stopped on purpose: a hand-over may take longer on a busy machine, and what is given up is rolled back."""


@dataclass(slots=True)
class Audit:
    """What the check found, for the record."""

    attempts: int = 0
    committed: int = 0
    asked_again: int = 0
    """In-doubt commits whose outcome was asked for once more at the end, and compared."""
    found_committed: int = 0
    """Of these."""
    looks: int = 0
    """Browses of a whole output while work went on, each of whole transactions."""
    not_sent: int = 0
    """What failed in doubt before its commit was sent: none of it may be there."""


class AuditedWorkload(Workload):
    """As its base; `name` keeps the queues of several workloads in one set apart."""

    def __init__(
        self,
        client: Client,
        addresses: Sequence[str],
        set_name: str,
        *,
        name: str = "",
        senders: int = 3,
        movers: int = 2,
        patience: SessionSettings | None = None,
    ) -> None:
        """`patience`: the senders'; None: as of any client."""
        super().__init__(client, set_name, senders=senders, movers=movers)
        self.input = f"{set_name}-{name}-in"
        self.outputs = (f"{set_name}-{name}-out-1", f"{set_name}-{name}-out-2")
        self.audit = Audit()
        self.commit_times: list[float] = []
        self.account = Account(name)
        self.outcomes: list[Outcome] = []
        """Heard when asking again."""
        self._senders_client = Client(addresses, patience)
        self._channels = Channels()
        queues = (self.input, *self.outputs)
        self.readers = [
            Reader(f"reader {number}", self._channels, set_name, addresses, queues) for number in (1, 2)
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self._senders_client, super().running(), contextlib.AsyncExitStack() as stack:
                for reader in self.readers:
                    await stack.enter_async_context(reader.reading())
                await asyncio.gather(*(reader.until_shown() for reader in self.readers))
                yield
        finally:
            await self._channels.close()

    async def check(self) -> None:
        """All that the base checks, and every attempt by itself."""
        await super().check()
        await self._check_attempts([await self._marked_numbers(queue) for queue in self.outputs])

    async def _marked_numbers(self, queue: str) -> list[Shown]:
        async with self.client.session() as session:
            return [(message.body, message.properties.split(MARK)) async for message in session.browse(queue)]

    async def _check_attempts(self, outputs: Iterable[Iterable[Shown]]) -> None:
        moves: list[frozenset[bytes]] = []
        for attempt, is_there in self.account.compare(outputs):
            if is_there and attempt.is_move:
                moves.append(attempt.bodies)
            await self._check_attempt(attempt, is_there)
        self._check_readers(moves)

    async def _check_attempt(self, attempt: Attempt, is_there: bool) -> None:
        """What was in doubt is asked for again; what never got that far is not there."""
        transaction = attempt.transaction
        assert transaction is not None, "an attempt by gRPC has its transaction"
        if attempt.is_committed is None and not transaction.was_in_doubt:
            assert not is_there, f"its commit was never sent: {attempt}"
            self.audit.not_sent += 1
        self.audit.attempts += 1
        self.audit.committed += is_there
        if transaction.was_in_doubt and transaction.id is not None:
            await self._ask_again(transaction.id, attempt, is_there)

    def _check_readers(self, moves: Iterable[frozenset[bytes]]) -> None:
        """P1 and P3 as clients see them: whoever looked at an output saw whole transactions, and committed ones only."""
        whole = {body: bodies for bodies in moves for body in bodies}
        for reader in self.readers:
            for browsed in reader.browses:
                if browsed.queue == self.input or not browsed.is_end:
                    continue
                shown = {seen.body for seen in browsed.messages}
                where = f"{reader.name} browsed {browsed.queue} in epoch {browsed.epoch} at {browsed.commit_index}"
                invented = shown - whole.keys()
                assert not invented, f"{where}: shown and never committed: {sorted(invented)[:10]}"
                parts = {body for body in shown if not whole[body] <= shown}
                assert not parts, f"{where}: parts of transactions: {sorted(parts)[:10]}"
                self.audit.looks += 1

    async def _send(self, sender: int) -> None:
        sequence = 0
        session = self._senders_client.session()
        while self._is_sending:
            bodies = [b"%d/%06d.%d" % (sender, sequence, part) for part in range(BATCH)]
            result = await self._commit(session.transaction(), session, bodies, (self.input,), ())
            if result is True:
                self.confirmed.update(bodies)
            elif result is None:
                self.doubtful.update(bodies)
            if result is not False:
                sequence += 1
            await asyncio.sleep(PACE_SECONDS)

    async def _ask_again(self, transaction_id: str, attempt: Attempt, is_there: bool) -> None:
        outcome = await self.client.get_outcome(transaction_id, fence=True, patience_seconds=20)
        assert (outcome.state is OutcomeState.COMMITTED) == is_there, f"{attempt} and {outcome}"
        self.outcomes.append(outcome)
        self.audit.asked_again += 1
        self.audit.found_committed += is_there

    async def _commit(
        self,
        transaction: Transaction,
        session: Session,
        bodies: list[bytes],
        queues: Iterable[str],
        messages: Iterable[Message],
    ) -> bool | None:
        mark = self.account.next_mark()
        moved = list(messages)
        outgoing = self._outgoing(mark, bodies, moved)
        attempt = Attempt(frozenset(message.body for message in outgoing), bool(moved), transaction)
        self.account.attempts[mark] = attempt
        self.in_flight.add(transaction)
        try:
            async with transaction:
                for queue in queues:
                    await transaction.publish(queue, outgoing)
                await transaction.accept(*moved)
            attempt.is_committed = True
        except InDoubt as doubt:
            self.report.in_doubt += 1
            self.report.errors[doubt.code.name] += 1
            return None
        except Rejected as rejected:
            attempt.is_committed = False
            self.report.rolled_back += 1
            self.report.errors[rejected.code.name] += 1
            await asyncio.sleep(0.01)
            return False
        finally:
            self.in_flight.discard(transaction)
            self.report.asked += transaction.was_in_doubt
        self._committed()
        return True

    def _committed(self) -> None:
        """A client heard that a transaction of its own committed."""
        self.report.committed += 1
        now = time.monotonic()
        self.commit_times.append(now)
        self.report.longest_gap_seconds = max(self.report.longest_gap_seconds, now - self._last_commit)
        self._last_commit = now

    def _outgoing(self, mark: bytes, bodies: list[bytes], moved: list[Message]) -> list[OutgoingMessage]:
        """What an attempt publishes, with its mark: behind the marks of those who published it before."""
        if moved:
            return [_marked(message.properties + MARK + mark, message.body) for message in moved]
        return [_marked(mark, body) for body in bodies]

    def summary(self) -> str:
        """One line for the test's output."""
        report, audit = self.report, self.audit
        codes = ", ".join(f"{name} {count}" for name, count in sorted(report.errors.items()))
        return (
            f"{audit.attempts} transactions, {report.committed} heard committed, {report.rolled_back} rolled back; "
            f"hit in flight {report.killed_in_flight}, in doubt {report.asked} (asked again {audit.asked_again}, of them "
            f"committed {audit.found_committed}), in doubt before the commit {audit.not_sent}; "
            f"longest gap {report.longest_gap_seconds:.1f} s; readers browsed {sum(len(one.browses) for one in self.readers)} "
            f"times ({audit.looks} whole outputs), took {sum(len(one.deliveries) for one in self.readers)} deliveries and locked "
            f"{sum(one.locked for one in self.readers)} messages; {codes or 'no errors'}"
        )


def _marked(mark: bytes, body: bytes) -> OutgoingMessage:
    return OutgoingMessage(mark, body, True, 0, ())
