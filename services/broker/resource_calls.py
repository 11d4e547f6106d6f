"""The Resources service: queues, exchanges and bindings, for whoever holds no session stream (DESIGN 4).

Law: only the primary of the set answers, and every other broker forwards once. Each call may be repeated: what is declared again
is as it was, and what is deleted again is not found.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from lockstep.core.commands import (
    AnyCommand,
    BindCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.runtime.client_message_codec import span
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import cluster_pb2
from lockstep.wire.v1 import resources_pb2 as pb
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.repeated_calls import repeatable

QUEUE = cluster_pb2.LocateRequest.KIND_QUEUE
EXCHANGE = cluster_pb2.LocateRequest.KIND_EXCHANGE
Name = tuple["cluster_pb2.LocateRequest.Kind.ValueType", str]

_Response = TypeVar("_Response", bound=Message)


class ResourceCalls:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(self, callers: CallerSessions, forwarding: Forwarding, directory: Directory) -> None:
        self._callers = callers
        self._forwarding = forwarding
        self._directory = directory

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service(
            "Resources",
            {
                "DeclareQueue": unary(pb.DeclareQueueRequest, self._declare_queue),
                "DeleteQueue": unary(pb.DeleteQueueRequest, self._delete_queue),
                "DeclareExchange": unary(pb.DeclareExchangeRequest, self._declare_exchange),
                "DeleteExchange": unary(pb.DeleteExchangeRequest, self._delete_exchange),
                "Bind": unary(pb.BindRequest, self._bind),
                "Unbind": unary(pb.UnbindRequest, self._unbind),
            },
        )

    @repeatable
    async def _declare_queue(self, request: pb.DeclareQueueRequest) -> pb.DeclareQueueResponse:
        has_target = request.HasField("dead_letter_exchange")
        options = QueueOptions(
            is_durable=not request.is_transient,
            is_auto_delete=request.is_auto_delete,
            length_max=request.length_max,
            bytes_max=request.bytes_max,
            is_evicting=request.is_evicting,
            message_ttl_ms=span(request.message_ttl_ms),
            dead_letter_exchange=request.dead_letter_exchange if has_target else None,
            dead_letter_key=request.dead_letter_key,
            delivery_count_max=request.delivery_count_max,
        )
        set_name = await self._set_for_new((QUEUE, request.name), request.resource_set)
        command = DeclareQueueCommand(0, request.name, options)
        return await self._run("DeclareQueue", set_name, request, pb.DeclareQueueResponse, command, "queue")

    @repeatable
    async def _delete_queue(self, request: pb.DeleteQueueRequest) -> pb.DeleteQueueResponse:
        set_name = await self._set_of([(QUEUE, request.name)], request.resource_set)
        command = DeleteQueueCommand(0, request.name, request.if_unused, request.if_empty)
        return await self._run("DeleteQueue", set_name, request, pb.DeleteQueueResponse, command, "messages")

    @repeatable
    async def _declare_exchange(self, request: pb.DeclareExchangeRequest) -> pb.DeclareExchangeResponse:
        set_name = await self._set_for_new((EXCHANGE, request.name), request.resource_set)
        command = DeclareExchangeCommand(0, request.name, request.kind, not request.is_transient)
        return await self._run(
            "DeclareExchange", set_name, request, pb.DeclareExchangeResponse, command, "exchange"
        )

    @repeatable
    async def _delete_exchange(self, request: pb.DeleteExchangeRequest) -> pb.DeleteExchangeResponse:
        set_name = await self._set_of([(EXCHANGE, request.name)], request.resource_set)
        command = DeleteExchangeCommand(0, request.name, request.if_unused)
        return await self._run("DeleteExchange", set_name, request, pb.DeleteExchangeResponse, command)

    @repeatable
    async def _bind(self, request: pb.BindRequest) -> pb.BindResponse:
        set_name = await self._set_of(
            [(EXCHANGE, request.exchange), (QUEUE, request.queue)], request.resource_set
        )
        arguments = _sorted(request.arguments)
        command = BindCommand(0, request.exchange, request.queue, request.key, arguments)
        return await self._run("Bind", set_name, request, pb.BindResponse, command)

    @repeatable
    async def _unbind(self, request: pb.UnbindRequest) -> pb.UnbindResponse:
        set_name = await self._set_of(
            [(EXCHANGE, request.exchange), (QUEUE, request.queue)], request.resource_set
        )
        arguments = _sorted(request.arguments)
        command = BindCommand(0, request.exchange, request.queue, request.key, arguments, is_unbind=True)
        return await self._run("Unbind", set_name, request, pb.UnbindResponse, command)

    async def _run(
        self,
        method: str,
        set_name: SetName,
        request: Message,
        kind: type[_Response],
        command: AnyCommand,
        value: str = "",
    ) -> _Response:
        """Does the command at the set's primary; the response's field `value` has what was answered."""

        async def run() -> _Response:
            done = await self._callers.run(set_name, command)
            response: Any = kind(
                resource_set=set_name,
                epoch=done.epoch,
                commit_index=done.commit_index,
                **({value: done.value} if value else {}),
            )
            found: _Response = response
            return found

        return await self._forwarding.at_primary(set_name, f"Resources/{method}", request, kind, run)

    async def _set_of(self, names: list[Name], named: str) -> SetName:
        """The set that is named, or has all of these. Raises `Rejected`: NOT_FOUND, OTHER_SET."""
        if named:
            return self._directory.set_or_only(named)
        sets = [await self._owner(name) for name in names]
        if len(set(sets)) > 1:
            text = f"exchange {names[0][1]!r} is in set {sets[0]!r}, queue {names[1][1]!r} in {sets[1]!r}"
            raise Rejected(ErrorCode.OTHER_SET, text, exchange=names[0][1], queue=names[1][1])
        return sets[0]

    async def _set_for_new(self, name: Name, named: str) -> SetName:
        """The set that is named, or has it already; else the only one."""
        if named:
            return self._directory.set_or_only(named)
        try:
            return await self._owner(name)
        except Rejected as rejected:
            if rejected.code is not ErrorCode.NOT_FOUND:
                raise
        return self._directory.set_or_only("")

    async def _owner(self, name: Name) -> SetName:
        kind, text = name
        located = await self._directory.locate(cluster_pb2.LocateRequest(kind=kind, name=text))
        return SetName(located.resource_set)


def _sorted(arguments: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(arguments.items()))
