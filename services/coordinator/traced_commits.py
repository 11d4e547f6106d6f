"""Spans of a coordinator: what it takes to end a distributed transaction, for whoever asked for it.

Law: the answer is the same with traces and without.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from lockstep.runtime.tracing import Span, now_ns, trace_of_distributed
from lockstep.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing

_Request = TypeVar("_Request", pb.CommitDistributedRequest, pb.RollbackDistributedRequest)
_Response = TypeVar("_Response", bound=Message)


def traced(
    tracing: "Tracing | None", name: str, handler: Callable[[_Request], Awaitable[_Response]]
) -> Callable[[_Request], Awaitable[_Response]]:
    """The handler of a commit or rollback, in the trace of its transaction; itself where traces are off."""
    if tracing is None:
        return handler

    async def handle(request: _Request) -> _Response:
        begun_ns, is_done = now_ns(), False
        try:
            response = await handler(request)
            is_done = True
            return response
        finally:
            global_id = request.transaction_id.hex()
            attributes: dict[str, str | int] = {
                "lockstep.transaction": global_id,
                "lockstep.participants": len(request.participants),
            }
            span = Span(name, begun_ns, attributes, is_error=not is_done)
            tracing.record(trace_of_distributed(global_id), span)

    return handle
