"""Turns: a work of small steps on an event loop, between which others have their turns.

Law: it keeps the loop for some milliseconds at a time, however long it is.
"""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

TURN_SECONDS = 0.004
_Made = TypeVar("_Made")


async def in_turns(steps: Generator[object, None, _Made]) -> _Made:
    """What the steps make, each of which takes a millisecond at most. Raises what they raise."""
    while True:
        until = time.monotonic() + TURN_SECONDS
        try:
            while time.monotonic() < until:
                next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made
        await asyncio.sleep(0)


def at_once(steps: Generator[object, None, _Made]) -> _Made:
    """The same of few steps, without turns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made
