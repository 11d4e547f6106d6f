"""Those who have something to write on a connection, and wait for room."""

import asyncio


class WaitingWriters:
    """Lives as long as its connection, which wakes them."""

    def __init__(self) -> None:
        self._of_streams: dict[int, list[asyncio.Future[None]]] = {}

    async def wait(self, number: int) -> None:
        """Returns when something has changed for who writes on that stream: more room, or an end."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._of_streams.setdefault(number, []).append(future)
        await future

    def wake(self, number: int = 0) -> None:
        """Those of that stream; 0: of all."""
        if not self._of_streams:
            return
        if number:
            woken = [self._of_streams.pop(number, [])]
        else:
            woken = list(self._of_streams.values())
            self._of_streams = {}
        for writers in woken:
            for writer in writers:
                if not writer.done():
                    writer.set_result(None)
