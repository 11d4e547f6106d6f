"""Asking several brokers for what any of them may answer: one after the other, or beside one that says nothing.

Law: the first answer counts, and whoever was asked in vain is asked no longer. What a broker refuses because of who it is may be
asked of the others; any other refusal is an answer. That there is no such resource set is one when all have said so: a broker
whose view lags has not heard of it yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc.aio

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.status import error_from, is_ours

_Result = TypeVar("_Result")

_TRY_ELSEWHERE = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.NOT_PRIMARY, ErrorCode.WRONG_EPOCH, ErrorCode.UNKNOWN_SET}
)
"""What a broker says because of who it is, or of what it has heard."""


class NobodyAnswered(Exception):
    """All were asked, in vain."""

    def __init__(self, error: LockstepError, knows_nobody: bool) -> None:
        self.error = error
        """What the last one said that said anything."""
        self.knows_nobody = knows_nobody
        """Each of them has said that there is no such resource set."""


async def first_answer(
    calls: Sequence[Callable[[], Awaitable[_Result]]], beside_seconds: float | None = None
) -> _Result:
    """Makes these calls one after the other, until one is answered. After `beside_seconds` without an answer the next one is made
    beside it; None: never. Raises what a broker answers, and `NobodyAnswered`."""
    error: LockstepError = Rejected(
        ErrorCode.UNAVAILABLE, "none of them can be reached, or says something in time"
    )
    left = list(reversed(calls))
    unknown = 0
    asked: set[asyncio.Future[_Result]] = set()
    try:
        while left or asked:
            if left:
                asked.add(asyncio.ensure_future(left.pop()()))
            done, _ = await asyncio.wait(
                asked, timeout=beside_seconds if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for answered in done:
                asked.remove(answered)
                try:
                    return answered.result()
                except grpc.aio.AioRpcError as failure:
                    heard = error_from(failure, is_read=True)
                    if heard.code not in _TRY_ELSEWHERE:
                        raise heard from failure
                    unknown += heard.code is ErrorCode.UNKNOWN_SET
                    if is_ours(failure):
                        error = heard
    finally:
        for other in asked:
            if not other.cancel():
                other.exception()  # It is looked at: nobody waits for it any more.
    raise NobodyAnswered(error, 0 < unknown == len(calls))
