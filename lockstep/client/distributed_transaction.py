"""A transaction over any number of resource sets, and over databases and services beside them: everywhere or nowhere (DESIGN 4).

Law: `commit` returns only if it committed, and raises `Rejected` only if it did not and will not; what nobody could tell is
`InDoubt`, and then coordinators end it by themselves. What was done in it is visible nowhere before (T3, T5).

    open --commit--> committed | rolled back | in doubt          open --rollback, failover, time-out--> rolled back
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from lockstep.client.command_batches import CommandBatches
from lockstep.client.consumer import Message
from lockstep.client.coordinators import PATIENCE_SECONDS, Coordinators
from lockstep.client.distributed_outcome import outcome_of, resolved
from lockstep.client.heuristics import check_committed
from lockstep.client.outcome import Outcome, OutcomeState
from lockstep.client.outgoing import Headers, Outgoing
from lockstep.client.resource_manager import Branch, ResourceManager
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import SetName, TransactionKey, transaction_id
from lockstep.core.postgres_gid import gid_of
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.xid_codec import decode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb

VOTE_SECONDS = 10.0
"""How long a coordinator that was reached may wait for the last vote: its `--prepare-ms`."""
ENDED_SECONDS = PATIENCE_SECONDS + VOTE_SECONDS + 5.0
"""How long a branch without a session waits to be prepared: longer than a commit may take to reach a coordinator and to have it
ask for votes, with some seconds for the ways. Connections are prepared before that, behind a call that may take as long again."""

PREPARED_STATUS = "PREPARE TRANSACTION"
"""PostgreSQL's word for a transaction that is prepared."""

UNDO_SECONDS = 0.5
"""For the ends of what is rolled back, before coordinators are told of it: some rounds. A set without a primary must not keep the
others' locks, and where work has not ended coordinators try again."""


class SetPort(Protocol):
    """What it needs of its session."""

    async def of_target(self, exchange: str, routing_key: str) -> tuple[SetSession, CommandBatches]: ...
    async def resource_manager(self, set_name: str) -> ResourceManager: ...


class PostgresConnection(Protocol):
    """What it needs of a connection, such as psycopg's AsyncConnection that is not in autocommit mode."""

    async def execute(self, query: bytes, /) -> object:
        """Returns a cursor, whose `statusmessage` is what PostgreSQL says that it has done."""

    async def rollback(self) -> None: ...


class DistributedTransaction:
    """Lives from `Session.distributed_transaction` to its end; used from one event loop."""

    def __init__(
        self,
        session: SetPort,
        coordinators: Coordinators,
        ask: Callable[[str], Awaitable[Outcome]],
        timeout_ms: int,
    ) -> None:
        """`ask`: a set, by the name that the transaction has there, with a fence."""
        self.state = TransactionState.OPEN
        self.was_in_doubt = False
        """The answer to its commit was lost, and its outcome was asked for."""
        self.heuristic = XaStatus.OK
        """After a commit: whether somebody else than its coordinator has ended participants, such as `HEURMIX`."""
        self._session = session
        self._coordinators = coordinators
        self._ask = ask
        self._timeout_ms = timeout_ms
        self._id = b""
        self._generation = ""
        self._participants: list[str] = []
        self._xids: dict[SetName, Xid] = {}
        """Of the branches in sets."""
        self._branches: dict[SetName, tuple[ResourceManager, Branch]] = {}
        self._connections: list[tuple[PostgresConnection, Xid]] = []
        self._enlisting = asyncio.Lock()
        self._beginning: dict[SetName, asyncio.Lock] = {}
        """While a branch begins; those of several sets begin at the same time."""
        self._is_closed = False
        self._is_ending = False
        """Its commit is asked for."""
        self._failure: LockstepError | None = None
        """Why a message was not accepted."""

    def __repr__(self) -> str:
        return f"DistributedTransaction({self.id or 'not begun'}, {self.state.value})"

    @property
    def id(self) -> str:
        """Its name: 32 hexadecimal digits; "" before its first operation."""
        return self._id.hex()

    # --- work ---

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
    ) -> None:
        """Publishes if it commits. Returns when the operation is on its way; waits while too much is. If it fails then, so does
        the commit. What raises here is not in it: whoever goes on all the same commits the rest."""
        session, _ = await self._session.of_target(exchange, routing_key)
        await session.room()
        branch = await self.branch_in(session.set_name)
        branch.publish(
            routing_key,
            messages,
            exchange=exchange,
            properties=properties,
            durable=durable,
            ttl_ms=ttl_ms,
            headers=headers,
            priority=priority,
        )

    async def accept(self, *messages: Message) -> None:
        """Takes messages from their queues if it commits; if not, they return there.

        Raises `Rejected`, such as STALE_DELIVERY for one that the queue has again, or that is settled; then it cannot commit any
        more.
        """
        for message in messages:
            try:
                (await self.branch_in(message.set_name)).accept(message)
            except LockstepError as refused:
                # A commit after all would do the rest and leave the message.
                self._failure = self._failure or refused
                raise

    async def enlist(self, participant: str) -> Xid:
        """Adds a Participant service (grpc://host:port/name), which does its work under the xid that this returns."""
        self._check_takes_work()
        return (await self._enlist([participant]))[0]

    async def enlist_postgres(self, connection: PostgresConnection, participant: str) -> None:
        """Adds what a connection does from now on. `participant`: the PostgreSQL participant of its database, as for `enlist`.

        The connection is in no transaction now, and not used for anything else until this one has ended. Raises `Rejected`
        (INVALID_ARGUMENT) for one in autocommit mode, whose work would stay whatever becomes of this, and for one that is
        enlisted already, whose work until now would be lost.
        """
        self._check_takes_work()
        if getattr(connection, "autocommit", False):
            text = "the connection is in autocommit mode: what it does cannot be undone"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text, transaction_id=self.id)
        if any(connection == enlisted for enlisted, _ in self._connections):
            text = "the connection is enlisted already"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text, transaction_id=self.id)
        await connection.rollback()
        self._connections.append((connection, await self.enlist(participant)))

    async def enlist_sets(self, set_names: Sequence[SetName]) -> None:
        """Names the branches in these sets, with one call if it is the first; nothing begins in them by that."""
        xids = await self._enlist([f"set:{name}" for name in set_names])
        self._xids |= zip(set_names, xids, strict=True)

    async def branch_in(self, set_name: SetName, transaction: TransactionKey | None = None) -> Branch:
        """Its branch in a set, begun at the first time; or made of an open TX of its session, with what is in that."""
        async with self._beginning.setdefault(set_name, asyncio.Lock()):
            self._check_takes_work()
            known = self._branches.get(set_name)
            if known is None:
                manager = await self._session.resource_manager(set_name)
                self._check_takes_work()
                if set_name not in self._xids:
                    await self.enlist_sets([set_name])
                xid = self._xids[set_name]
                # Each time: the set may have lost the session since.
                manager.select_soon(has_many_branches=True)
                branch = await manager.start_soon(xid, transaction=transaction, timeout_ms=self._timeout_ms)
                await self._begun(manager, xid)
                known = self._branches[set_name] = manager, branch
            return known[1]

    # --- ends ---

    async def commit(self) -> None:
        """Returns when it is committed everywhere. Raises `Rejected` (rolled back) or `InDoubt` (nobody could tell)."""
        self._check_takes_work()
        if not self._participants:
            self.state = TransactionState.COMMITTED
            return
        self._is_ending = True
        try:
            if self._failure is not None:
                raise self._failure
            await self._end_branches()
            await self._prepare_connections()
        except LockstepError as error:
            await self._undo()
            raise self._rolled_back(error.message) from error
        except BaseException:
            await self._undo()
            raise
        self.state = TransactionState.IN_DOUBT
        request = pb.CommitDistributedRequest(
            transaction_id=self._id,
            generation=self._generation,
            participants=self._participants,
            is_closed=self._is_closed,
            reads_state=True,
        )
        try:
            answer = await self._coordinators.call("Commit", request, pb.CommitDistributedResponse())
        except Rejected:
            await self._undo()
            raise
        except InDoubt as doubt:
            self._conclude(await self._resolved(doubt))
            return
        outcome = outcome_of(self.id, answer)
        if outcome.state not in (OutcomeState.COMMITTED, OutcomeState.ROLLED_BACK):
            text = f"a coordinator answered state {answer.state}"
            outcome = await self._resolved(InDoubt(ErrorCode.ILLEGAL_STATE, text))
        self._conclude(outcome, answer.pending)

    async def rollback(self) -> None:
        """Ends it without effect; does nothing if it is rolled back already. Raises `Rejected` where its end is under way."""
        if self.state is TransactionState.ROLLED_BACK:
            return
        self._check_takes_work()
        await self._undo()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits at the end of the block, if it was not ended in it; rolls back if the block raised."""
        if self.state is not TransactionState.OPEN:
            return
        if error is not None:
            await self.rollback()
        else:
            await self.commit()

    # Inside

    async def _begun(self, manager: ResourceManager, xid: Xid) -> None:
        """Raises `Rejected` where its end was asked for meanwhile."""
        try:
            self._check_takes_work()
        except Rejected:
            # Nobody else ends the session's work in it, and until then it cannot be rolled back.
            await _quietly(manager.end(xid, fail=True))
            raise

    async def _enlist(self, participants: Sequence[str]) -> list[Xid]:
        try:
            xids = await self._enlist_in_turn(participants)
            self._check_takes_work()
            return xids
        except InDoubt as doubt:
            # It may be in a coordinator's list. Nothing is done under it, and none of these can commit by that.
            text = f"it was not enlisted: {doubt.message}"
            raise Rejected(ErrorCode.UNAVAILABLE, text, **doubt.details) from doubt

    async def _enlist_in_turn(self, participants: Sequence[str]) -> list[Xid]:
        async with self._enlisting:
            if not self._id:
                begin = pb.BeginDistributedRequest(timeout_ms=self._timeout_ms, participants=participants)
                begun = await self._coordinators.call("Begin", begin, pb.BeginDistributedResponse())
                self._id, self._generation = begun.transaction_id, begun.generation
                if begun.xids:
                    self._participants += participants
                    return [decode_xid(xid) for xid in begun.xids]
            return [await self._enlist_one(participant) for participant in participants]

    async def _enlist_one(self, participant: str) -> Xid:
        request = pb.EnlistParticipantRequest(
            transaction_id=self._id,
            generation=self._generation,
            number=len(self._participants),
            participant=participant,
        )
        enlisted = await self._coordinators.call("Enlist", request, pb.EnlistParticipantResponse())
        self._participants.append(participant)
        return decode_xid(enlisted.xid)

    async def _end_branches(self) -> None:
        """Each tells whether all of its operations came; raises `Rejected` where one did not, or failed."""
        # From here on no session has them: should this process die before a coordinator hears of the commit, they end soon.
        wait = ENDED_SECONDS + (PATIENCE_SECONDS if self._connections else 0.0)
        within = 0.0 if 0 < self._timeout_ms <= wait * 1000 else wait
        ends = [manager.end_soon(branch.xid, within) for manager, branch in self._branches.values()]
        ended = await asyncio.gather(*ends)
        for set_name, status in zip(self._branches, ended, strict=True):
            if status is not XaStatus.OK:
                raise self._rolled_back(f"its branch in {set_name} answered {status.name}")

    async def _prepare_connections(self) -> None:
        if not self._connections:
            return
        # The list is in the log before anything is prepared that nobody else would look for (T3).
        request = pb.CloseDistributedRequest(
            transaction_id=self._id, generation=self._generation, participants=self._participants
        )
        await self._coordinators.call("Close", request, pb.CloseDistributedResponse())
        self._is_closed = True
        for connection, xid in self._connections:
            done = await connection.execute(b"prepare transaction '%s'" % gid_of(xid).encode())
            status = getattr(done, "statusmessage", None)
            if status != PREPARED_STATUS:
                # A transaction in which a statement has failed is rolled back, and that is no error to PostgreSQL.
                text = (
                    f"PostgreSQL answered {status} to PREPARE TRANSACTION: a statement before it had failed"
                )
                raise Rejected(ErrorCode.ROLLED_BACK, text, transaction_id=self.id)

    async def _resolved(self, doubt: InDoubt) -> Outcome:
        """Raises `InDoubt` where nobody can tell."""
        self.was_in_doubt = True
        names = {transaction_id(name, branch.key): branch.key for name, (_, branch) in self._branches.items()}
        is_in_sets_only = len(self._participants) == len(names)
        return await resolved(self._ask, self.id, self._generation, names, is_in_sets_only, doubt)

    def _conclude(self, outcome: Outcome, pending: Sequence[str] = ()) -> None:
        """Returns if it is committed; raises what a commit does."""
        self.heuristic = outcome.heuristic
        if outcome.state is OutcomeState.HEURISTICALLY_COMMITTED:
            self.heuristic = XaStatus.HEURCOM
        elif outcome.state is OutcomeState.HEURISTICALLY_ROLLED_BACK:
            self.heuristic = XaStatus.HEURRB
        try:
            check_committed(outcome, pending)
        except Rejected:
            self.state = TransactionState.ROLLED_BACK
            raise
        self.state = TransactionState.COMMITTED

    async def _undo(self) -> None:
        self.state = TransactionState.ROLLED_BACK
        # Being cancelled cancels the waiting only: nobody else would end it.
        await asyncio.shield(asyncio.ensure_future(self._roll_back()))

    async def _roll_back(self) -> None:
        ends = [_quietly(manager.end(branch.xid, fail=True)) for manager, branch in self._branches.values()]
        ends += [_rolled_back(connection) for connection, _ in self._connections]
        if ends:
            await asyncio.wait(map(asyncio.ensure_future, ends), timeout=UNDO_SECONDS)
        if not self._participants:
            return
        request = pb.RollbackDistributedRequest(
            transaction_id=self._id,
            generation=self._generation,
            participants=self._participants,
            is_closed=self._is_closed,
            reads_state=True,
        )
        # Without its commit it is not going to happen, whoever ends it.
        await _quietly(self._coordinators.call("Rollback", request, pb.RollbackDistributedResponse()))

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise Rejected(
                ErrorCode.TRANSACTION_FINISHED,
                f"transaction {self.id} is {self.state.value}",
                transaction_id=self.id,
            )

    def _check_takes_work(self) -> None:
        """Also behind whatever was waited for: once the branches are being ended, what is done in them is lost without a word."""
        self._check_open()
        if self._is_ending:
            raise Rejected(ErrorCode.TRANSACTION_FINISHED, f"transaction {self.id} is being committed")

    def _rolled_back(self, why: str) -> Rejected:
        return Rejected(
            ErrorCode.ROLLED_BACK, f"transaction {self.id} was rolled back: {why}", transaction_id=self.id
        )


async def _rolled_back(connection: PostgresConnection) -> None:
    with contextlib.suppress(Exception):  # Its driver's own; a connection that is gone has no transaction.
        await connection.rollback()


async def _quietly(call: Awaitable[object]) -> None:
    """What it would say does not matter any more."""
    try:
        await call
    except LockstepError:
        pass
