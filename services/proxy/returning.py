"""Messages on their way back to their queues: a link that is attached behind them does not get others first.

Law: what a client gives back, or leaves behind when its link ends, is back before a later attach to the same queue is
answered. Without this, the new consumer's credit could be served before the return is heard of, out of order.
"""

import asyncio
from typing import Any

WAIT_SECONDS = 5.0
"""At most: a queue that cannot be reached is not waited for."""


class Returning:
    """Lives as long as its worker."""

    def __init__(self) -> None:
        self._under_way: dict[str, set[asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def note(self, queue: str, confirmation: "asyncio.Future[Any]") -> None:
        """Messages go back to the queue, or will before this is done; confirmed when they are there."""
        self._under_way.setdefault(queue, set()).add(confirmation)
        confirmation.add_done_callback(lambda done: self._back(queue, done))

    async def over(self, queue: str) -> None:
        """Returns when all that goes back to the queue now is there."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                # What has ended gives back in turn.
                while waiting := self._under_way.get(queue):
                    await asyncio.wait(set(waiting))
        except TimeoutError:
            pass

    def _back(self, queue: str, confirmation: "asyncio.Future[Any]") -> None:
        waiting = self._under_way[queue]
        waiting.discard(confirmation)
        if not waiting:
            del self._under_way[queue]
