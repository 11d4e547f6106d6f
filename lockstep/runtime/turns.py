"""Turns: a work of small steps on an event loop, between which others have their turns.

Law: it keeps the loop for some milliseconds at a time, however long it is. What a step leaves to a thread the loop does not wait
for: the next step is behind its end.
"""

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

TURN_SECONDS = 0.004
LeftToThread = Future[Any] | None
"""What a step left to a thread, if anything. Whoever cannot wait for it goes on: the next step waits, and keeps its thread."""
_Made = TypeVar("_Made")


async def in_turns(steps: Generator[LeftToThread, None, _Made]) -> _Made:
    """What the steps make, each of which takes a millisecond at most. Raises what they raise."""
    while True:
        until = time.monotonic() + TURN_SECONDS
        left: LeftToThread = None
        try:
            while left is None and time.monotonic() < until:
                left = next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made
        await give_way(left)


async def give_way(left: LeftToThread = None) -> None:
    """Others have their turn; returns when the thread is done with what was `left` to it, whatever came of that."""
    if left is None:
        await asyncio.sleep(0)
    else:
        await asyncio.wait((asyncio.wrap_future(left),))
