"""Selectors of clients that attach: each is compiled to find what is wrong with it, long ones one in a turn of the event loop.

Law: however many links a client attaches at once, others have their turn behind each selector that takes some milliseconds.
"""

import asyncio

from lockstep.core.amqp.selector import compile_selector

SHORT_CHARS_MAX = 256
"""What people write: a fraction of a millisecond."""


class SelectorTurns:
    """Lives as long as its worker, whose connections share it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def check(self, text: str) -> None:
        """Raises `Rejected` INVALID_ARGUMENT, with the place as `at`, for a text that is no selector or is too long."""
        if len(text) <= SHORT_CHARS_MAX:
            compile_selector(text)
            return
        async with self._turn:
            await asyncio.sleep(0)
            compile_selector(text)
