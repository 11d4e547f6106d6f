"""What goes wrong for a reader of committed events, beside what goes wrong for everybody.

Law: a reader that cannot get what it asked for hears of it. Nothing is skipped silently.
"""

from typing import cast

import grpc

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.status import error_from, is_ours


class EventsOutOfRange(Rejected):
    """The log no longer has what was asked for: nobody had it kept, or more was owed than the brokers keep. Or the group was left
    behind.
    """


class OffsetMismatch(Rejected):
    """The offset names another log's content: its epoch is not the one of the record there, because data was lost, say."""


_TYPES: dict[grpc.StatusCode, type[Rejected]] = {
    grpc.StatusCode.OUT_OF_RANGE: EventsOutOfRange,
    grpc.StatusCode.FAILED_PRECONDITION: OffsetMismatch,
}
_ELSEWHERE = {ErrorCode.UNAVAILABLE, ErrorCode.NOT_PRIMARY, ErrorCode.UNKNOWN_SET}
"""A broker may not have heard of a set yet that a reader knows from another one."""


def event_error(failure: grpc.RpcError) -> tuple[LockstepError, bool]:
    """The error behind a failed call, and whether another broker, or the same one later, may answer.

    Every call of the events service may be repeated, so none of its errors is in doubt.
    """
    call = cast(grpc.Call, failure)
    error = error_from(call, is_read=True)
    if is_ours(call):
        kind = _TYPES.get(call.code(), Rejected)
        return kind(error.code, error.message, **error.details), error.code in _ELSEWHERE
    return error, error.code is ErrorCode.UNAVAILABLE
