"""Calls that are repeated when their answer was lost.

Law: each may be the second one, and the first may have done it. So a broker that cannot tell, because it does not lead the set,
has not heard of it yet, does not know the session any more or has forgotten the outcome, says *in doubt* and never *rejected*.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from lockstep.core.errors import ErrorCode, InDoubt, Rejected

SAY_NOTHING = {
    ErrorCode.NOT_PRIMARY,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNKNOWN_SESSION,
    ErrorCode.UNKNOWN_SET,
    ErrorCode.EXPIRED,
}
"""Refusals because of who is asked, or when: they say nothing of what an earlier call did."""

_Arguments = ParamSpec("_Arguments")
_Response = TypeVar("_Response")


def repeatable(
    call: Callable[_Arguments, Awaitable[_Response]],
) -> Callable[_Arguments, Awaitable[_Response]]:
    """A service's method for such a call: *in doubt* where its refusal says nothing of an earlier one."""

    @functools.wraps(call)
    async def called(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Response:
        try:
            return await call(*arguments, **named)
        except Rejected as error:
            if error.code not in SAY_NOTHING:
                raise
            raise InDoubt(error.code, error.message, **error.details) from error

    return called
