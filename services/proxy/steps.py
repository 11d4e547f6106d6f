"""Work in steps of the event loop: what takes long gives way to others after some milliseconds, and goes on in a later turn.

Law: a step ends by the processor time that it has taken, and only where its work says that it may: there whatever else is under
way may find things as they are. How much one client says at once makes more steps, and no longer ones.
"""

import asyncio
from collections.abc import Iterator
from time import thread_time

STEP_SECONDS = 0.005
"""Of processor time: a quarter of what a step may take, for what is behind its last look at the clock."""


def go_on(work: Iterator[None]) -> bool:
    """One step of a work, which yields where a step may end; answers whether it is done. Nobody looks at the clock before it
    yields first: what is short costs nothing by this."""
    end = 0.0
    for _ in work:
        now = thread_time()
        if not end:
            end = now + STEP_SECONDS
        elif now >= end:
            return False
    return True


async def in_steps(work: Iterator[None]) -> None:
    """Does all of a work; others have their turn between its steps."""
    while not go_on(work):
        await asyncio.sleep(0)
