"""Outbox: what waits to be written on one stream.

Law: items leave in the order in which they came, and whatever gathered while the last write was under way leaves together. It
counts bytes: whoever fills it looks at `bytes_waiting` and stops, or closes the stream, at a limit of its own.

    open --finish--> finishing --(empty)--> closed          open, finishing --abort--> closed
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
ITEMS_MAX = 256
"""Taken at once: each may take microseconds to encode, however few bytes it has."""


class Outbox(Generic[Item]):
    """Lives as long as its stream; filled by the driver, emptied by the stream's one writer, on one event loop."""

    def __init__(self) -> None:
        self._items: deque[tuple[Item, int]] = deque()
        self._is_finished = False
        self._writer: asyncio.Future[None] | None = None
        """The writer, when it waits for items."""
        self._fillers: list[tuple[int, asyncio.Future[None]]] = []
        """Those who wait until fewer than so many bytes are left."""
        self.bytes_waiting = 0
        """Bytes put and not yet taken."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_finished(self) -> bool:
        """Nothing can be put any more."""
        return self._is_finished

    def put(self, item: Item, item_bytes: int = 0, wakes: bool = True) -> None:
        """Adds an item; dropped after `finish` or `abort`, as a stream that ends loses what comes late.

        `wakes` False: whoever puts it will call `write_now`.
        """
        if self._is_finished:
            return
        self._items.append((item, item_bytes))
        self.bytes_waiting += item_bytes
        if wakes:
            self._wake_writer()

    def write_now(self, bytes_max: int, write: Callable[[list[Item]], bool]) -> None:
        """In the place of a writer that has nothing to do: `write` writes what waits, or nothing of it and answers False."""
        items = self._items
        while items and self._writer is not None and not self._writer.done():
            before = items.copy()
            if not write(self._pop(bytes_max)):
                items.clear()
                items.extend(before)
                self.bytes_waiting = sum(item_bytes for _, item_bytes in before)
                self._wake_writer()
        if self._fillers:
            self._wake_fillers()

    async def take(self, bytes_max: int) -> list[Item]:
        """Waits for items; returns those that gathered, up to `bytes_max` and `ITEMS_MAX` but at least one; none when the outbox
        is closed."""
        while not self._items:
            if self._is_finished:
                return []
            assert self._writer is None, "an outbox has one writer"
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        taken = self._pop(bytes_max)
        if self._fillers:
            self._wake_fillers()
        return taken

    def _pop(self, bytes_max: int) -> list[Item]:
        """There is one at least."""
        items = self._items
        item, taken_bytes = items.popleft()
        taken = [item]
        while items and taken_bytes + items[0][1] <= bytes_max and len(taken) < ITEMS_MAX:
            item, item_bytes = items.popleft()
            taken.append(item)
            taken_bytes += item_bytes
        self.bytes_waiting -= taken_bytes
        return taken

    async def wait_below(self, bytes_limit: int) -> None:
        """Returns when fewer than `bytes_limit` bytes wait, or the outbox is finished."""
        while self.bytes_waiting >= bytes_limit and not self._is_finished:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._fillers.append((bytes_limit, waiter))
            await waiter

    def finish(self) -> None:
        """Closes it behind what was put before."""
        self._is_finished = True
        self._wake_writer()
        self._wake_fillers()

    def abort(self) -> None:
        """Closes it and drops what waits."""
        self._items.clear()
        self.bytes_waiting = 0
        self.finish()

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _wake_fillers(self) -> None:
        waiting, self._fillers = self._fillers, []
        for limit, waiter in waiting:
            if waiter.done():
                continue
            if self.bytes_waiting < limit or self._is_finished:
                waiter.set_result(None)
            else:
                self._fillers.append((limit, waiter))
