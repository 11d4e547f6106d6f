"""The Transactions service: transactions and outcomes, for whoever holds no session stream (DESIGN 4, T1, T5).

Law: only the primary of the set that is named answers; every other broker forwards once, and what was forwarded is not forwarded
again. What this process does not know of a transaction, its set does: its outcome answers for it. What may be repeated is
*in doubt* where nobody can say what an earlier call did (`repeated_calls.py`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from lockstep.core.commands import CommitCommand, RollbackCommand
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import SessionId, SetName, TransactionKey, transaction_id
from lockstep.core.server_messages import OutcomeAnswer, OutcomeState
from lockstep.runtime.bodies_apart import Found
from lockstep.runtime.rpc import service, unary, unary_with_bodies
from lockstep.runtime.turns import in_turns
from lockstep.runtime.wire import Serialized
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.caller_secrets import unauthorized
from services.broker.caller_session import Done
from services.broker.caller_sessions import CallerSessions, OpenTransaction
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.repeated_calls import repeatable
from services.broker.set_queries import SetQueries
from services.broker.transactions_codec import (
    NO_BODIES,
    PUBLISH_BODIES,
    accept_command,
    acquired_messages,
    forwarded_publish,
    parse_name,
    publish_command,
    settle_command,
)

_REFUSALS = {
    OutcomeState.UNKNOWN: (ErrorCode.UNKNOWN_TRANSACTION, "is not known"),
    OutcomeState.OPEN: (ErrorCode.LOCKED, "belongs to another session"),
    OutcomeState.PREPARED: (ErrorCode.ILLEGAL_STATE, "is prepared"),
    OutcomeState.COMMITTED: (ErrorCode.TRANSACTION_FINISHED, "has committed"),
    OutcomeState.ROLLED_BACK: (ErrorCode.ROLLED_BACK, "was rolled back"),
    OutcomeState.EXPIRED: (ErrorCode.EXPIRED, "has ended, and its outcome was forgotten"),
    OutcomeState.HEURISTICALLY_COMMITTED: (ErrorCode.TRANSACTION_FINISHED, "has committed"),
    OutcomeState.HEURISTICALLY_ROLLED_BACK: (ErrorCode.ROLLED_BACK, "was rolled back"),
}
"""What is said to whoever wants something else of a transaction than the outcome that it has."""
_HAVE_OPERATIONS = {OutcomeState.PREPARED, OutcomeState.COMMITTED, OutcomeState.HEURISTICALLY_COMMITTED}
SESSIONS_SHOWN_MAX = 500
"""Ids of sessions by which one call says that a transaction is its own."""

_Response = TypeVar("_Response", bound=Message)


class TransactionsService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self,
        callers: CallerSessions,
        queries: SetQueries,
        forwarding: Forwarding,
        directory: Directory,
        generation: Callable[[], str],
    ) -> None:
        """`generation` of the cluster, as this process knows it."""
        self._callers = callers
        self._queries = queries
        self._forwarding = forwarding
        self._directory = directory
        self._generation = generation

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service(
            "Transactions",
            {
                "Begin": unary(pb.BeginRequest, self._begin),
                "Publish": unary_with_bodies(pb.PublishRequest, PUBLISH_BODIES, self._publish),
                "Acquire": unary(pb.AcquireRequest, self._acquire),
                "Accept": unary(pb.AcceptRequest, self._accept),
                "Settle": unary(pb.SettleRequest, self._settle),
                "Commit": unary(pb.CommitRequest, self._commit),
                "Rollback": unary(pb.RollbackRequest, self._rollback),
                "EndSession": unary(pb.EndSessionRequest, self._end_session),
                "GetOutcome": unary(pb.GetOutcomeRequest, self._get_outcome),
            },
        )

    # --- transactions -------------------------------------------------------------------------------------------------

    async def _begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        set_name = self._directory.set_or_only(request.resource_set)

        async def begin() -> pb.BeginResponse:
            transaction, done = await self._callers.begin(set_name, request.session_id, request.timeout_ms)
            secret = self._callers.secrets.secret_of(set_name, transaction.key)
            response = pb.BeginResponse(transaction_id=transaction.name, secret=secret)
            return _head(response, set_name, done)

        return await self._forwarding.at_primary(
            set_name, "Transactions/Begin", request, pb.BeginResponse, begin
        )

    @repeatable
    async def _publish(self, request: pb.PublishRequest, bodies: Found = NO_BODIES) -> pb.PublishResponse:
        set_name, key = parse_name(request.transaction_id)
        command = await in_turns(publish_command(request, key, bodies))

        async def publish() -> pb.PublishResponse:
            transaction = await self._open(set_name, key, request.secret)
            done = await self._callers.operate(transaction, command)
            return _head(pb.PublishResponse(enqueues=done.value), set_name, done)

        async def serialize(forwarded: pb.PublishRequest) -> Serialized:
            return await in_turns(forwarded_publish(forwarded, bodies))

        return await self._forwarding.at_primary(
            set_name,
            "Transactions/Publish",
            request,
            pb.PublishResponse,
            publish,
            serialize=serialize,
        )

    @repeatable
    async def _accept(self, request: pb.AcceptRequest) -> pb.AcceptResponse:
        set_name, key = parse_name(request.transaction_id)
        command = accept_command(request, key)

        async def accept() -> pb.AcceptResponse:
            transaction = await self._open(set_name, key, request.secret)
            done = await self._callers.operate(transaction, command)
            return _head(pb.AcceptResponse(accepted=done.value), set_name, done)

        return await self._forwarding.at_primary(
            set_name, "Transactions/Accept", request, pb.AcceptResponse, accept
        )

    @repeatable
    async def _commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        set_name, key = parse_name(request.transaction_id)

        async def commit() -> pb.CommitResponse:
            transaction = self._find(set_name, key, request.secret)
            if transaction is not None:
                done = await self._callers.end(transaction, CommitCommand(0, key, request.operations))
            else:
                done = await self._ended(set_name, key, OutcomeState.COMMITTED)
            return _head(pb.CommitResponse(), set_name, done)

        return await self._forwarding.at_primary(
            set_name, "Transactions/Commit", request, pb.CommitResponse, commit
        )

    @repeatable
    async def _rollback(self, request: pb.RollbackRequest) -> pb.RollbackResponse:
        set_name, key = parse_name(request.transaction_id)

        async def rollback() -> pb.RollbackResponse:
            transaction = self._find(set_name, key, request.secret)
            if transaction is not None:
                done = await self._roll_back(transaction)
            else:
                done = await self._ended(set_name, key, OutcomeState.ROLLED_BACK)
            return _head(pb.RollbackResponse(), set_name, done)

        return await self._forwarding.at_primary(
            set_name, "Transactions/Rollback", request, pb.RollbackResponse, rollback
        )

    async def _roll_back(self, transaction: OpenTransaction) -> Done:
        try:
            return await self._callers.end(transaction, RollbackCommand(0, transaction.key))
        except Rejected as error:
            if error.code is not ErrorCode.ROLLED_BACK:
                raise
            # By its time-out, or because it could not commit any more: that is what the caller wants.
            return await self._ended(transaction.set_name, transaction.key, OutcomeState.ROLLED_BACK)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def _acquire(self, request: pb.AcquireRequest) -> pb.AcquireResponse:
        limits = self._callers.limits
        if request.resource_set:
            set_name = self._directory.set_or_only(request.resource_set)
        else:
            owner = await self._directory.owner("queue", request.queue)
            if owner is None:
                text = f"no queue {request.queue[:80]!r}"
                raise Rejected(ErrorCode.NOT_FOUND, text, queue=request.queue[:80])
            set_name = owner
        if request.wait_ms > limits.wait_ms_max or request.messages_max > limits.acquired_max:
            text = f"at most {limits.acquired_max} messages at once, and {limits.wait_ms_max} ms of waiting for them"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text)

        async def acquire() -> pb.AcquireResponse:
            session, acquired = await self._callers.acquire(
                set_name,
                request.session_id,
                request.session_timeout_ms,
                request.queue,
                request.messages_max or 1,
                request.wait_ms / 1000,
            )
            return pb.AcquireResponse(
                resource_set=set_name,
                epoch=acquired.epoch,
                commit_index=acquired.commit_index,
                session_id=session.session_id,
                messages=acquired_messages(acquired.messages),
            )

        return await self._forwarding.at_primary(
            set_name, "Transactions/Acquire", request, pb.AcquireResponse, acquire
        )

    @repeatable
    async def _settle(self, request: pb.SettleRequest) -> pb.SettleResponse:
        set_name = self._directory.set_or_only(request.resource_set)
        command = settle_command(request)

        async def settle() -> pb.SettleResponse:
            session = self._callers.known_session(set_name, request.session_id)
            if session is None:
                text = f"session {request.session_id[:80]!r} is not known here"
                raise Rejected(ErrorCode.UNKNOWN_SESSION, text, session_id=request.session_id[:80])
            done = await session.settle(command)
            return _head(pb.SettleResponse(settled=done.value), set_name, done)

        return await self._forwarding.at_primary(
            set_name, "Transactions/Settle", request, pb.SettleResponse, settle
        )

    @repeatable
    async def _end_session(self, request: pb.EndSessionRequest) -> pb.EndSessionResponse:
        set_name = self._directory.set_or_only(request.resource_set)

        async def end_session() -> pb.EndSessionResponse:
            response = pb.EndSessionResponse(resource_set=set_name)
            session = self._callers.known_session(set_name, request.session_id)
            if session is not None:
                session.detach()
                await session.answered(session.ended)
                response.epoch, response.commit_index = session.head
            return response

        return await self._forwarding.at_primary(
            set_name, "Transactions/EndSession", request, pb.EndSessionResponse, end_session
        )

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def _get_outcome(self, request: pb.GetOutcomeRequest) -> pb.GetOutcomeResponse:
        set_name, key = parse_name(request.transaction_id)
        if len(request.session_ids) > SESSIONS_SHOWN_MAX:
            text = f"{len(request.session_ids)} sessions, at most {SESSIONS_SHOWN_MAX}"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text)

        async def get_outcome() -> pb.GetOutcomeResponse:
            sessions = tuple(SessionId(name) for name in request.session_ids)
            is_permitted = request.fence and self._callers.secrets.is_secret_of(set_name, key, request.secret)
            answer = await self._queries.outcome(
                set_name, key, request.fence, sessions, is_permitted=is_permitted
            )
            if request.fence and answer.state == OutcomeState.OPEN:
                raise unauthorized(set_name, key)
            return pb.GetOutcomeResponse(
                resource_set=set_name,
                epoch=answer.epoch,
                commit_index=answer.commit_index,
                transaction_id=request.transaction_id,
                state=pb.OutcomeState.ValueType(answer.state),
                reason=answer.reason,
                generation=self._generation(),
            )

        is_read = not request.fence
        return await self._forwarding.at_primary(
            set_name, "Transactions/GetOutcome", request, pb.GetOutcomeResponse, get_outcome, is_read=is_read
        )

    def _find(self, set_name: SetName, key: TransactionKey, secret: bytes) -> OpenTransaction | None:
        """The transaction, if it is open here. Raises `Rejected` for who is not its caller."""
        if self._callers.secrets.is_secret_of(set_name, key, secret):
            return self._callers.find(set_name, key)
        if self._callers.is_known(set_name, key):
            raise unauthorized(set_name, key)
        return None

    async def _open(self, set_name: SetName, key: TransactionKey, secret: bytes) -> OpenTransaction:
        """The transaction, for an operation. Raises `Rejected` for one that is not open here, or somebody else's, and `InDoubt`
        for one that has ended with what was done in it: an earlier call may have done this."""
        transaction = self._find(set_name, key, secret)
        if transaction is None:
            answer = await self._queries.outcome(set_name, key, fence=False)
            refusal = _refusal(set_name, key, answer)
            if answer.state in _HAVE_OPERATIONS:
                raise InDoubt(refusal.code, refusal.message, **refusal.details)
            raise refusal
        return transaction

    async def _ended(self, set_name: SetName, key: TransactionKey, wanted: int) -> Done:
        """The end of a transaction that is not open here. Raises `Rejected` unless it is the one that is wanted."""
        answer = await self._queries.outcome(set_name, key, fence=False)
        if answer.state != wanted:
            raise _refusal(set_name, key, answer)
        return Done(answer.state, answer.epoch, answer.commit_index)


def _head(response: _Response, set_name: SetName, done: Done) -> _Response:
    """The response with what every response of a broker carries."""
    filled: Any = response
    filled.resource_set, filled.epoch, filled.commit_index = set_name, done.epoch, done.commit_index
    return response


def _refusal(set_name: SetName, key: TransactionKey, answer: OutcomeAnswer) -> Rejected:
    """The transaction has another outcome than the one that is wanted."""
    code, text = _REFUSALS[answer.state]
    name = transaction_id(set_name, key)
    return Rejected(code, f"transaction {name} {text}", transaction=name)
