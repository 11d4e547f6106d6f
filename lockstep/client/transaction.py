"""A transaction over queues, as its caller holds it. It becomes a distributed one when it touches a second set (DESIGN 4).

Law: `commit` returns only if the transaction committed, and raises `Rejected` only if it did not and will not. What is in doubt
is asked for (`GetOutcome` with a fence, DESIGN T5); only if nobody answers that, `InDoubt` is raised, with the id to ask for
later.

In one set a commit takes one round. The operations in the first set stay as they are when a second one comes: their
transaction becomes a branch.

    open --commit--> committed | rolled back | in doubt          open --rollback, failover, time-out--> rolled back
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self

from lockstep.client.command_batches import CommandBatches, Confirmation, LastPublish
from lockstep.client.consumer import Message
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.heuristics import HeuristicallyRolledBack
from lockstep.client.outcome import Outcome, OutcomeState
from lockstep.client.outgoing import Headers, Outgoing, outgoing
from lockstep.client.set_session import SetSession, key_of, never_begun
from lockstep.client.transaction_state import TransactionState
from lockstep.client.unheard import unheard
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, QueuePosition, SetName, TransactionKey, transaction_id
from lockstep.core.priority_levels import PRIORITY_DEFAULT


class SessionPort(Protocol):
    """What a transaction needs of its session."""

    async def of_target(self, exchange: str, routing_key: str) -> tuple[SetSession, CommandBatches]: ...
    async def of_set(self, set_name: SetName) -> tuple[SetSession, CommandBatches]: ...
    def distributed_transaction(self, *, timeout_ms: int = 0) -> DistributedTransaction: ...


_OF_ONE_BATCH = attrgetter("consumer", "epoch")
_ENDED = {ErrorCode.ROLLED_BACK, ErrorCode.UNKNOWN_TRANSACTION, ErrorCode.TRANSACTION_FINISHED}
_GONE = (OutcomeState.ROLLED_BACK, OutcomeState.HEURISTICALLY_ROLLED_BACK)
_DONE = (OutcomeState.COMMITTED, OutcomeState.HEURISTICALLY_COMMITTED)


class Transaction:
    """Lives from `Session.transaction` to its end. Begins with its first operation, whose queue names its resource set."""

    def __init__(
        self,
        session: SessionPort,
        ask: Callable[[str], Awaitable[Outcome]],
        timeout_ms: int,
        wide_timeout_ms: int = 0,
    ) -> None:
        """`wide_timeout_ms`: from when it becomes a distributed one; 0: as `timeout_ms`."""
        self.state = TransactionState.OPEN
        self.was_in_doubt = False
        """The answer to its commit was lost, and its outcome was asked for."""
        self._session = session
        self._ask = ask
        self._timeout_ms = timeout_ms
        self._wide_timeout_ms = wide_timeout_ms or timeout_ms
        self._place: tuple[SetSession, CommandBatches] | None = None
        self._key: TransactionKey | None = None
        self._beginning: asyncio.Task[TransactionKey] | None = None
        self._wide: DistributedTransaction | None = None
        """What it has become by touching a second set."""
        self._widening: asyncio.Task[DistributedTransaction] | None = None
        self._failure: LockstepError | None = None
        """Why the first operation failed that did."""
        self._is_given_up = False
        """Its caller has rolled it back."""

    def __repr__(self) -> str:
        return f"Transaction({self.id or 'not begun'}, {self.state.value})"

    @property
    def id(self) -> str | None:
        """Its name for `get_outcome`, as set/index.epoch, or 32 hexadecimal digits over several sets; None before its first
        operation."""
        if self._wide is not None:
            return self._wide.id
        if self._place is None or self._key is None:
            return None
        return transaction_id(self._place[0].set_name, self._key)

    @property
    def set_name(self) -> SetName | None:
        """The set of its first operation."""
        return None if self._place is None else self._place[0].set_name

    async def publish(
        self,
        routing_key: str,
        messages: Outgoing,
        *,
        exchange: str = "",
        properties: bytes = b"",
        durable: bool = True,
        ttl_ms: int = 0,
        headers: Headers = (),
        priority: int = PRIORITY_DEFAULT,
    ) -> Confirmation:
        """Publishes if it commits. Returns when the operation is on its way; waits while too much is. If it fails then, so does
        the commit. What raises here is not in it: whoever goes on all the same commits the rest."""
        batch = outgoing(messages, properties, durable, ttl_ms, headers, priority)
        place = await self._session.of_target(exchange, routing_key)
        await place[0].room()
        batches, key = await self._enter(place)
        return self._watch(batches.publish(exchange, routing_key, batch, key))

    async def accept(self, *messages: Message) -> None:
        """Takes messages from their queues if it commits; if not, they return there.

        Raises `Rejected`, such as STALE_DELIVERY for one that the queue has again, or that is settled; then it cannot commit any
        more.
        """
        for (consumer, _), together in groupby(messages, _OF_ONE_BATCH):
            try:
                batches, key = await self._enter(await self._session.of_set(consumer.set_name))
                consumer.accept_in(together, key, batches, self._note_failure)
            except LockstepError as refused:
                if self.state is TransactionState.OPEN:
                    self._failure = self._failure or refused
                raise

    async def accept_deliveries(
        self,
        place: tuple[SetSession, CommandBatches],
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        check: Callable[[], None],
    ) -> Confirmation:
        """As `accept`, for whoever keeps the deliveries of a consumer itself: where the confirmation fails, they are still held.

        `place`: the session that holds them, with its batches. `check` is called when nothing is waited for any more, and raises
        `Rejected` if the session may not hold them now: it may have been lost while the transaction began in its set.
        """
        batches, key = await self._enter(place)
        try:
            check()
        except Rejected as refused:
            self._failure = self._failure or refused
            raise
        return self._watch(batches.settle(queue, epoch, positions, c.Disposition.ACCEPT, key))

    async def commit(self) -> None:
        """Returns when it is committed. Raises `Rejected` (rolled back) or `InDoubt` (nobody could tell)."""
        self._check_open()
        if self._place is None:
            self.state = TransactionState.COMMITTED
            return
        try:
            key = self._key or await self._begin()
            await self._widened()
        except BaseException:
            # Nobody will commit it, and until it ends others wait for what it has locked.
            await self.rollback()
            raise
        self._check_open()  # Somebody else may have ended it meanwhile.
        session, batches = self._place
        last: LastPublish | None = None
        if self._failure is None and self._wide is None and session.takes_last_publish:
            last = batches.flush_but_last_publish(key)
        else:
            batches.flush()
        if self._failure is not None:
            failure = self._failure
            await self.rollback()
            raise self._rolled_back(Rejected(failure.code, failure.message)) from failure
        session.transactions.pop(key, None)
        self.state = TransactionState.IN_DOUBT
        if self._wide is not None:
            await self._commit_everywhere(self._wide)
            return
        try:
            await (session.commit(key, *last) if last is not None else session.commit(key))
            self.state = TransactionState.COMMITTED
        except Rejected as rejected:
            self.state = TransactionState.ROLLED_BACK
            if rejected.code not in _ENDED:
                unheard(session.submit(c.RollbackCommand(0, key)))
            raise self._rolled_back(rejected) from (self._failure or rejected)
        except InDoubt as doubt:
            self.was_in_doubt = True
            await self._resolve(doubt)

    async def rollback(self) -> None:
        """Ends it without effect; does nothing if it is rolled back already."""
        if self.state is TransactionState.ROLLED_BACK:
            return
        self._check_open()
        self.state = TransactionState.ROLLED_BACK
        self._is_given_up = True
        if self._place is not None:
            # Being cancelled cancels the waiting only: nobody else would end it.
            await asyncio.shield(asyncio.ensure_future(self._roll_back(*self._place)))

    async def _roll_back(self, session: SetSession, batches: CommandBatches) -> None:
        try:
            key = await self._begin()
        except LockstepError:
            return
        await self._widened()
        batches.flush()
        session.transactions.pop(key, None)
        try:
            if self._wide is not None:
                await self._wide.rollback()
            else:
                await session.submit(c.RollbackCommand(0, key))
        except LockstepError:
            pass  # Without its commit it is not going to happen, whoever ends it.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits at the end of the block, if it was not ended in it; rolls back if the block raised."""
        if error is not None:
            if self.state is TransactionState.OPEN:
                await self.rollback()
        elif self.state is TransactionState.OPEN:
            await self.commit()
        elif (
            self._failure is not None and self.state is TransactionState.ROLLED_BACK and not self._is_given_up
        ):
            raise self._failure

    # Inside

    async def _enter(self, place: tuple[SetSession, CommandBatches]) -> tuple[CommandBatches, TransactionKey]:
        self._check_open()
        if self._place is None:
            self._place = place
        key = self._key
        if key is None:
            key = await self._begin()
            self._check_open()
        if self._place[0] is not place[0]:
            await self._widen(key, place[0].set_name)
            self._check_open()
        if self._wide is None:
            return self._place[1], key
        branch = await self._wide.branch_in(place[0].set_name)
        return branch.batches, branch.key

    async def _widen(self, key: TransactionKey, second: SetName) -> None:
        """Becomes a distributed transaction; raises what stood against it, and then cannot be committed."""
        if self._widening is None:
            self._widening = asyncio.ensure_future(self._send_widen(key, second))
        try:
            self._wide = await asyncio.shield(self._widening)
        except LockstepError as error:
            self._failure = self._failure or error
            raise

    async def _widened(self) -> None:
        """Its caller may have been cancelled while it became a distributed one: that goes on, and what it began has to end."""
        if self._widening is not None and self._wide is None:
            try:
                self._wide = await asyncio.shield(self._widening)
            except LockstepError as error:
                self._failure = self._failure or error

    async def _send_widen(self, key: TransactionKey, second: SetName) -> DistributedTransaction:
        """It has branches in both sets from now on; the set of the first one is not waited for."""
        assert self._place is not None, "it has begun"
        wide = self._session.distributed_transaction(timeout_ms=self._wide_timeout_ms)
        first = self._place[0].set_name
        try:
            await wide.enlist_sets([first, second])
            await wide.branch_in(first, key)
            await wide.branch_in(second)
        except BaseException:
            await wide.rollback()
            raise
        return wide

    async def _begin(self) -> TransactionKey:
        if self._key is None and self._beginning is None and self._timeout_ms == 0:
            self._take_begun()
        if self._key is None:
            if self._beginning is None:
                self._beginning = asyncio.ensure_future(self._send_begin())
            await asyncio.shield(self._beginning)
        assert self._key is not None, "a begin that is done has its key"
        return self._key

    def _take_begun(self) -> None:
        assert self._place is not None, "a set is known before begin"
        session, batches = self._place
        self._key = key = session.take_begun()
        if key is not None:
            batches.flush()
            session.transactions[key] = self._abort

    async def _send_begin(self) -> TransactionKey:
        assert self._place is not None, "a set is known before begin"
        session, batches = self._place
        batches.flush()
        await session.room()
        try:
            begun = await session.submit(c.BeginCommand(0, self._timeout_ms))
        except InDoubt as doubt:
            raise never_begun(doubt) from doubt
        self._key = key = key_of(begun)
        if key in session.core.window.operations:
            session.transactions[key] = self._abort
        else:
            self._abort()
        return key

    def _abort(self) -> None:
        if self.state is not TransactionState.OPEN:
            return
        self._failure = Rejected(
            ErrorCode.ROLLED_BACK,
            f"transaction {self.id} was rolled back by a failover or the loss of its session",
            transaction_id=self.id,
        )
        if self._widening is None:
            self.state = TransactionState.ROLLED_BACK
        # Otherwise its other branches are still open: its end rolls them back.

    def _check_open(self) -> None:
        if self.state is TransactionState.OPEN:
            return
        if self.state is TransactionState.ROLLED_BACK and self._failure is not None:
            raise self._failure
        raise Rejected(
            ErrorCode.TRANSACTION_FINISHED,
            f"transaction {self.id} is {self.state.value}",
            transaction_id=self.id,
        )

    def _watch(self, confirmation: Confirmation) -> Confirmation:
        confirmation.add_done_callback(self._note_failure)
        return confirmation

    def _note_failure(self, confirmation: Confirmation) -> None:
        error = None if confirmation.cancelled() else confirmation.exception()
        if self._failure is None and isinstance(error, LockstepError):
            self._failure = error

    def _rolled_back(self, rejected: Rejected) -> Rejected:
        why = f": {self._failure.message}" if self._failure is not None else f": {rejected.message}"
        return Rejected(
            ErrorCode.ROLLED_BACK, f"transaction {self.id} was rolled back{why}", transaction_id=self.id
        )

    async def _commit_everywhere(self, wide: DistributedTransaction) -> None:
        try:
            await wide.commit()
        except HeuristicallyRolledBack:
            raise
        except Rejected as rejected:
            raise self._rolled_back(rejected) from (self._failure or rejected)
        finally:
            self.state, self.was_in_doubt = wide.state, wide.was_in_doubt

    async def _resolve(self, doubt: InDoubt) -> None:
        assert self.id is not None, "only a begun transaction can be in doubt"
        try:
            outcome = await self._ask(self.id)
        except LockstepError as error:
            raise InDoubt(
                doubt.code,
                f"nobody could tell the outcome of {self.id}: {error.message}",
                transaction_id=self.id,
            ) from error
        if outcome.state in _DONE:
            self.state = TransactionState.COMMITTED
        elif outcome.state in _GONE or self._was_dropped(outcome):
            self.state = TransactionState.ROLLED_BACK
            raise self._rolled_back(Rejected(ErrorCode.ROLLED_BACK, outcome.state.name.lower()))
        else:
            raise InDoubt(
                doubt.code,
                f"the outcome of {self.id} is {outcome.state.name.lower()}",
                transaction_id=self.id,
            )

    def _was_dropped(self, outcome: Outcome) -> bool:
        """A later epoch whose log never had its begin: it was not, and will not be."""
        return (
            outcome.state is OutcomeState.UNKNOWN and self._key is not None and outcome.epoch > self._key[1]
        )
