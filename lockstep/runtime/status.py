"""The one table from error codes to gRPC status, and back from a gRPC error to what a caller gets.

Law: every `ErrorCode` is in the table. An error of ours travels with its code in the trailing metadata `lockstep-code`; what
arrives without one comes from the transport, and then only a call that cannot have begun is *rejected*: all else is *in doubt*.
"""

import json
from typing import Any, NoReturn

import grpc
import grpc.aio

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.wire_numbers import error_code

STATUS: dict[ErrorCode, grpc.StatusCode] = {
    ErrorCode.NONE: grpc.StatusCode.OK,
    ErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.LOCKED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNKNOWN_TRANSACTION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TRANSACTION_FINISHED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ROLLBACK_ONLY: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ROLLED_BACK: grpc.StatusCode.ABORTED,
    ErrorCode.SEQUENCE_GAP: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNKNOWN_SESSION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.STALE_DELIVERY: grpc.StatusCode.ABORTED,
    ErrorCode.NOT_PRIMARY: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.WRONG_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNKNOWN_SET: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.STORE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.OTHER_SET: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ILLEGAL_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.EXPIRED: grpc.StatusCode.NOT_FOUND,
    ErrorCode.COMMAND_INVALID: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.NOT_ALLOWED: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.UNAUTHORIZED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.POISON: grpc.StatusCode.FAILED_PRECONDITION,
}

CODE_KEY = "lockstep-code"
"""Metadata key: the number of the `ErrorCode`."""
DOUBT_KEY = "lockstep-in-doubt"
"""Metadata key: present when the error is `InDoubt`."""
DETAILS_KEY = "lockstep-details-bin"
"""Metadata key: the identifiers, as JSON."""

_NEVER_BEGAN = {
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
}
"""Statuses with which the transport or the server's outermost layer answers before any code of ours has run."""


def metadata_of(error: LockstepError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata that carries an error whole."""
    entries: list[tuple[str, str | bytes]] = [(CODE_KEY, str(int(error.code)))]
    if isinstance(error, InDoubt):
        entries.append((DOUBT_KEY, "1"))
    if error.details:
        entries.append((DETAILS_KEY, json.dumps(error.details, default=str).encode()))
    return tuple(entries)


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: LockstepError) -> NoReturn:
    """Ends a server's call with an error of ours."""
    await context.abort(STATUS[error.code], error.message, metadata_of(error))
    raise AssertionError("abort of a call returned")


def error_from(error: grpc.aio.AioRpcError | grpc.Call, is_read: bool = False) -> LockstepError:
    """What the caller of an RPC gets for a gRPC error.

    `is_read`: the call changes nothing, so whatever went wrong with it did not happen.
    """
    text = error.details() or error.code().name
    metadata = dict(error.trailing_metadata() or ())
    number = metadata.get(CODE_KEY)
    if number is None:
        if error.code() in _NEVER_BEGAN:
            return Rejected(_NEVER_BEGAN[error.code()], text)
        kind = Rejected if is_read else InDoubt
        return kind(ErrorCode.UNAVAILABLE, text)
    code = error_code(int(number)) if str(number).isdecimal() else ErrorCode.ILLEGAL_STATE
    kind = InDoubt if DOUBT_KEY in metadata else Rejected
    return kind(code, text, **_details(metadata.get(DETAILS_KEY)))


def is_ours(error: grpc.aio.AioRpcError | grpc.Call) -> bool:
    """Whether a broker said it, and not the transport."""
    return any(name == CODE_KEY for name, _ in error.trailing_metadata() or ())


def _details(encoded: str | bytes | None) -> dict[str, Any]:
    try:
        details = json.loads(encoded) if encoded else {}
    except ValueError:
        return {}
    return (
        {name: value for name, value in details.items() if name not in ("code", "message", "self")}
        if isinstance(details, dict)
        else {}
    )
