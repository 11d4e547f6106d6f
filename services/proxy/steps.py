"""Work in steps of the event loop: what takes long gives way to others after some milliseconds, and goes on in a later turn.

Law: a step ends by the processor time that it has taken, and only where its work says that it may: there whatever else is under
way may find things as they are. How much one client says at once makes more steps, and no longer ones.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from time import thread_time
from typing import Any

from lockstep.runtime.turns import give_way

STEP_SECONDS = 0.005
"""Of processor time: a quarter of what a step may take, for what is behind its last look at the clock."""
Left = Future[Any] | asyncio.Future[Any]
"""What a step leaves to a thread, or to another work."""
Work = Iterator[Left | None]
"""It yields where a step may end, and what it has left to others: its next step is behind that."""


def go_on(work: Work, left: Callable[[Left], None] | None = None) -> bool:
    """One step of a work; answers whether it is done. Nobody looks at the clock before it yields first: what is short costs
    nothing by this. `left` is told what the step leaves to others; it ends with that.
    """
    end = 0.0
    for to_others in work:
        if to_others is not None and left is not None:
            left(to_others)
            return False
        now = thread_time()
        if not end:
            end = now + STEP_SECONDS
        elif now >= end:
            return False
    return True


async def in_steps(work: Work) -> None:
    """Does all of a work; others have their turn between its steps."""
    left: list[Left] = []
    while not go_on(work, left.append):
        await until_over(left.pop() if left else None)


async def until_over(left: Left | None) -> None:
    """Others have their turn; returns when what was `left` to them is over, whatever came of it."""
    if isinstance(left, asyncio.Future):
        await asyncio.wait((left,))
    else:
        await give_way(left)
