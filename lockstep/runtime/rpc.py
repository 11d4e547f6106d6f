"""Handlers of gRPC methods: bytes in, bytes out, and errors that are always typed.

Law: whatever bytes a caller sends, the answer is a message or one of our errors; nothing a caller does ends the process. A broken
`assert` is our own bug and does (CONVENTIONS, Failure).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, InDoubt, LimitReached, LockstepError
from lockstep.runtime import bodies_apart
from lockstep.runtime.bodies_apart import BodiesApart, Found
from lockstep.runtime.field_limit import LOOKED_BYTES_MIN, look_at_fields
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.process import halt
from lockstep.runtime.status import abort
from lockstep.runtime.turns import give_way, in_turns
from lockstep.runtime.wire import parse, parse_in_steps
from lockstep.transport.server import as_it_came

_log = logging.getLogger("lockstep.rpc")
refusals = LimitLog(_log)
"""Of calls that end by a limit, or by a bug of ours."""

Context = grpc.aio.ServicerContext[bytes, bytes]
_END: Any = grpc.aio.EOF


_Request = TypeVar("_Request", bound=Message)


def unary(
    kind: type[_Request], handler: Callable[[_Request], Awaitable[Message]]
) -> "grpc.RpcMethodHandler[Any, Any]":
    """A call with one request of type `kind` and one response; the handler raises `LockstepError` for an error."""

    async def handle(data: bytes, _context: Context) -> bytes:
        if len(data) > LOOKED_BYTES_MIN:
            for _ in look_at_fields(kind, data):
                await asyncio.sleep(0)
        return (await handler(parse(kind(), data))).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(_guarded(handle))


def unary_with_bodies(
    kind: type[_Request], bodies: BodiesApart, handler: Callable[[_Request, Found], Awaitable[Message]]
) -> "grpc.RpcMethodHandler[Any, Any]":
    """As `unary`, for a request with messages: it is told their big bodies apart, in which the request lacks them."""

    async def handle(data: bytes | memoryview, _context: Context) -> bytes:
        if len(data) > LOOKED_BYTES_MIN:
            for _ in look_at_fields(kind, data):
                await asyncio.sleep(0)
        if len(data) < bodies_apart.LOOKED_BYTES_MIN:
            return (await handler(parse(kind(), data), {})).SerializeToString()
        await give_way()
        rest, found = await in_turns(bodies.take_from(data))
        await give_way()
        request = await in_turns(parse_in_steps(kind(), rest))
        await give_way()
        if isinstance(data, memoryview):
            del rest
            data.release()  # Whoever called has it until there is an answer, and to let go of so much takes a while, too.
            await give_way()
        return (await handler(request, found)).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(_guarded(handle), request_deserializer=as_it_came)


def unary_stream(
    handler: Callable[[bytes, Context], Awaitable[None]],
) -> "grpc.RpcMethodHandler[Any, Any]":
    """One request, then the handler writes to the context until it returns."""
    return grpc.unary_stream_rpc_method_handler(_guarded(handler))


def stream_unary(handler: Callable[[Context], Awaitable[bytes]]) -> "grpc.RpcMethodHandler[Any, Any]":
    """The handler reads from the context and returns the response."""

    async def handle(_requests: object, context: Context) -> bytes:
        return await handler(context)

    return grpc.stream_unary_rpc_method_handler(_guarded(handle))


def stream_stream(handler: Callable[[Context], Awaitable[None]]) -> "grpc.RpcMethodHandler[Any, Any]":
    """The handler reads from and writes to the context until it returns."""

    async def handle(_requests: object, context: Context) -> None:
        await handler(context)

    return grpc.stream_stream_rpc_method_handler(_guarded(handle))


def service(name: str, methods: "Mapping[str, grpc.RpcMethodHandler[Any, Any]]") -> grpc.GenericRpcHandler:
    """The service `lockstep.wire.v1.<name>`."""
    return grpc.method_handlers_generic_handler(f"lockstep.wire.v1.{name}", dict(methods))


async def read(context: Context) -> bytes | None:
    """The next message of a caller's stream; None at its end."""
    data: Any = await context.read()
    return None if data is _END else data


async def hear(context: Context, handle: Callable[[bytes | memoryview], bool]) -> bool:
    """Gives `handle` the messages of a caller's stream, each in the turn in which it comes, until it answers False.

    Answers whether there may be more. Raises what `handle` raises.
    """
    call: Any = context
    has_more: bool = await call.hear(handle)
    return has_more


def _guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await handler(request, context)
        except LockstepError as error:
            if isinstance(error, LimitReached):
                refusals.refused(error.limit, error.message)
            return await abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except (asyncio.InvalidStateError, grpc.aio.BaseError):
            # The caller went away while we wrote to it.
            return None
        except AssertionError as error:
            halt("a handler's assertion failed", error)
        except Exception as error:
            refusals.seldom("call_failed", "in a handler", error=error)
            # It may have been raised behind what the call was to do.
            internal = InDoubt(ErrorCode.ILLEGAL_STATE, f"internal error: {type(error).__name__}")
            return await abort(context, internal)

    return guarded
