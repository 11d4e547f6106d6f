"""Fills queues, many messages at a time."""

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import cycle
from typing import Any

from lockstep.client.session import Session

UNCONFIRMED_MAX = 50
"""Commands under way."""


async def fill(
    session: Session, set_name: str, queues: Sequence[str], batch: Sequence[bytes], messages: int
) -> None:
    """Declares the queues in the set; a batch of these bodies goes to each in turn, until there are so many messages."""
    room = asyncio.Semaphore(UNCONFIRMED_MAX)

    async def at_most(work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        finally:
            room.release()

    async with asyncio.TaskGroup() as declaring:
        for name in queues:
            await room.acquire()
            declaring.create_task(at_most(session.declare_queue(name, set_name=set_name)))
    async with asyncio.TaskGroup() as publishing:
        for first, name in zip(range(0, messages, len(batch)), cycle(queues), strict=False):
            await room.acquire()
            publishing.create_task(at_most(session.publish(name, list(batch[: messages - first]))))
