"""The ResourceManager service: the verbs of XA for callers that hold no session stream (DESIGN 4).

Law: only the primary of the set answers, and every verb is a numbered command of a caller's session: what it does and answers is
decided where all verbs are.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    EndCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SetTimeoutCommand,
)
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName, transaction_id
from lockstep.core.xid import Xid
from lockstep.runtime.client_message_codec import span
from lockstep.runtime.rpc import service, unary
from lockstep.runtime.xid_codec import decode_xid, encode_xid
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import resource_manager_pb2 as pb
from services.broker.caller_session import Done
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.repeated_calls import repeatable
from services.broker.set_queries import SetQueries

PAGE = 500
"""Branches of one answer to Recover."""
_Response = TypeVar("_Response", bound=Message)
_Request = pb.BranchRequest | pb.CommitBranchRequest | pb.EndBranchRequest | pb.SetBranchTimeoutRequest
_Made = TypeVar("_Made", bound=AnyCommand)


class BranchCalls:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self, callers: CallerSessions, queries: SetQueries, forwarding: Forwarding, directory: Directory
    ) -> None:
        self._callers = callers
        self._queries = queries
        self._forwarding = forwarding
        self._directory = directory

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service(
            "ResourceManager",
            {
                "Start": unary(pb.StartBranchRequest, self._start),
                "End": unary(pb.EndBranchRequest, self._end),
                "Prepare": unary(pb.BranchRequest, self._prepare),
                "Commit": unary(pb.CommitBranchRequest, self._commit),
                "Rollback": unary(pb.BranchRequest, self._rollback),
                "Forget": unary(pb.BranchRequest, self._forget),
                "SetTimeout": unary(pb.SetBranchTimeoutRequest, self._set_timeout),
                "GetTimeout": unary(pb.BranchRequest, self._get_timeout),
                "Recover": unary(pb.RecoverBranchesRequest, self._recover),
            },
        )

    # --- verbs --------------------------------------------------------------------------------------------------------

    async def _start(self, request: pb.StartBranchRequest) -> pb.StartBranchResponse:
        set_name, xid = self._named(request)

        async def start() -> pb.StartBranchResponse:
            transaction, done = await self._callers.start_branch(
                set_name, request.session_id, xid, span(request.timeout_ms)
            )
            return pb.StartBranchResponse(
                resource_set=set_name,
                epoch=done.epoch,
                commit_index=done.commit_index,
                transaction_id=transaction.name,
                secret=self._callers.secrets.secret_of(set_name, transaction.key),
            )

        return await self._forwarding.at_primary(
            set_name, "ResourceManager/Start", request, pb.StartBranchResponse, start
        )

    @repeatable
    async def _end(self, request: pb.EndBranchRequest) -> pb.BranchResponse:
        async def end(set_name: SetName, command: EndCommand) -> Done:
            branch = self._callers.branch(set_name, command.xid)
            if branch is not None and not command.is_failed:
                # Who says that all has come is its caller: with less, half of it could be committed.
                self._callers.secrets.check(set_name, branch.key, request.secret)
            return await self._callers.end_branch(set_name, command)

        return await self._verb(
            "End", request, lambda xid: EndCommand(0, xid, request.operations, request.is_failed), end
        )

    @repeatable
    async def _prepare(self, request: pb.BranchRequest) -> pb.BranchResponse:
        return await self._verb("Prepare", request, lambda xid: PrepareBranchCommand(0, xid))

    @repeatable
    async def _commit(self, request: pb.CommitBranchRequest) -> pb.BranchResponse:
        return await self._verb(
            "Commit", request, lambda xid: CommitBranchCommand(0, xid, request.is_one_phase)
        )

    @repeatable
    async def _rollback(self, request: pb.BranchRequest) -> pb.BranchResponse:
        return await self._verb("Rollback", request, lambda xid: RollbackBranchCommand(0, xid))

    @repeatable
    async def _forget(self, request: pb.BranchRequest) -> pb.BranchResponse:
        return await self._verb("Forget", request, lambda xid: ForgetBranchCommand(0, xid))

    @repeatable
    async def _set_timeout(self, request: pb.SetBranchTimeoutRequest) -> pb.BranchResponse:
        timeout_ms = span(request.timeout_ms)
        return await self._verb(
            "SetTimeout",
            request,
            lambda xid: SetTimeoutCommand(0, xid, timeout_ms),
            self._callers.set_timeout,
        )

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _get_timeout(self, request: pb.BranchRequest) -> pb.GetBranchTimeoutResponse:
        set_name, xid = self._named(request)

        async def get_timeout() -> pb.GetBranchTimeoutResponse:
            answer = await self._queries.timeout(set_name, xid.encode())
            if answer.code is not ErrorCode.NONE:
                raise Rejected(answer.code, f"no branch {xid} is open or prepared", xid=str(xid))
            return pb.GetBranchTimeoutResponse(
                resource_set=set_name,
                epoch=answer.epoch,
                commit_index=answer.commit_index,
                timeout_ms=answer.timeout_ms,
            )

        return await self._forwarding.at_primary(
            set_name,
            "ResourceManager/GetTimeout",
            request,
            pb.GetBranchTimeoutResponse,
            get_timeout,
            is_read=True,
        )

    async def _recover(self, request: pb.RecoverBranchesRequest) -> pb.RecoverBranchesResponse:
        set_name = self._directory.set_or_only(request.resource_set)
        after = decode_xid(request.after).encode() if request.HasField("after") else b""
        limit = min(request.limit or PAGE, PAGE)

        async def recover() -> pb.RecoverBranchesResponse:
            answer = await self._queries.recover(set_name, after, limit, request.with_open)
            return pb.RecoverBranchesResponse(
                resource_set=set_name,
                epoch=answer.epoch,
                commit_index=answer.commit_index,
                is_end=answer.is_end,
                branches=[
                    pb.RecoverBranchesResponse.BranchDescription(
                        xid=encode_xid(Xid.decode(branch.xid)),
                        transaction_id=transaction_id(set_name, branch.transaction),
                        state=pb.RecoverBranchesResponse.State.ValueType(branch.state),
                        since_ms=branch.since_ms,
                        operations=branch.operations,
                    )
                    for branch in answer.branches
                ],
            )

        return await self._forwarding.at_primary(
            set_name, "ResourceManager/Recover", request, pb.RecoverBranchesResponse, recover, is_read=True
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _verb(
        self,
        method: str,
        request: _Request,
        make: Callable[[bytes], _Made],
        run: Callable[[SetName, _Made], Awaitable[Done]] | None = None,
    ) -> pb.BranchResponse:
        """`run`: by callers' sessions; None: as what may be repeated."""
        set_name, xid = self._named(request)
        command = make(xid.encode())

        async def verb() -> pb.BranchResponse:
            return _status(set_name, await (run or self._callers.run)(set_name, command))

        return await self._forwarding.at_primary(
            set_name, f"ResourceManager/{method}", request, pb.BranchResponse, verb
        )

    def _named(self, request: Any) -> tuple[SetName, Xid]:
        """Raises `Rejected` for a set or an xid that is none."""
        xid: coordinator_pb2.BranchXid = request.xid
        return self._directory.set_or_only(request.resource_set), decode_xid(xid)


def _status(set_name: SetName, done: Done) -> pb.BranchResponse:
    return pb.BranchResponse(
        resource_set=set_name,
        epoch=done.epoch,
        commit_index=done.commit_index,
        status=pb.XaStatus.ValueType(done.value),
    )
