"""Work that something happens to where it waits: at each place in turn, however quick the machine is."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any


class AtWait(Awaitable[None]):
    """Runs a coroutine, and calls `act` when it waits for the `place`th time, from 1 on."""

    def __init__(self, work: Coroutine[Any, Any, None], place: int, act: Callable[[], None]) -> None:
        self._work, self._place, self._act = work, place, act
        self.waits = 0
        """How often it has waited."""

    def __await__(self) -> Generator[Any, None, None]:
        go_on: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                waited_for = go_on()
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self._place:
                self._act()
            try:
                yield waited_for
                go_on = partial(self._work.send, None)
            except BaseException as error:
                go_on = partial(self._work.throw, error)


async def run(work: AtWait) -> BaseException | None:
    """What it ended with, in a task of its own; fails where it does not end."""

    async def awaited() -> None:
        await work

    task = asyncio.ensure_future(awaited())
    await asyncio.wait([task], timeout=30)
    assert task.done(), "it waits for ever"
    return asyncio.CancelledError() if task.cancelled() else task.exception()
