"""Answers that nobody has to wait for."""

import asyncio
from typing import Any, TypeVar

_Future = TypeVar("_Future", bound="asyncio.Future[Any]")


def unheard(answer: _Future) -> _Future:
    """The future itself; should it end with an error that nobody takes, asyncio does not complain of it."""
    answer.add_done_callback(_see)
    return answer


def _see(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()
