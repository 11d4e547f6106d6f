"""Who waits for room among the commands of a session that are not answered yet.

Law: in the order in which they came. Whoever lines up lets others run, also where there is room; the first looks when there is
some, and has the next one look when it has gone.
"""

import asyncio
from collections.abc import Callable


class RoomLine:
    """Lives as long as its session; used from one event loop."""

    def __init__(self, is_full: Callable[[], bool], closed: "asyncio.Future[None]") -> None:
        """`is_full`: whether there is no room now; when the session is `closed`, nobody waits any more."""
        self.waiting: dict[int, asyncio.Future[None]] = {}
        """By place, in order; done: he is to look."""
        self._is_full = is_full
        self._closed = closed
        self._last_place = 0

    async def line_up(self) -> None:
        """Returns when there is room, and nobody else is to have it first."""
        loop = self._closed.get_loop()
        self._last_place += 1
        place = self._last_place
        try:
            while True:
                future = self.waiting[place] = loop.create_future()
                if not self._is_full():
                    loop.call_soon(self._call_next)
                await future
                if self._closed.done() or (not self._is_full() and place == next(iter(self.waiting))):
                    return
        finally:
            del self.waiting[place]
            self._call_next()

    def call_all(self) -> None:
        """All look: what they do now goes out together."""
        for future in self.waiting.values():
            _let_look(future)

    def _call_next(self) -> None:
        """The first of those who wait looks, where there is room."""
        if self.waiting and not self._is_full():
            _let_look(next(iter(self.waiting.values())))


def _let_look(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
