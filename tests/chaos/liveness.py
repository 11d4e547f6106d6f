"""Who goes on: clients say when they got something done, and whoever did harm waits until each of them has again (P7).

Law: a client is the task that works for it, and the task's name is the client's.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from types import CoroutineType


class Liveness:
    """Lives for one test; shared by its workloads."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        """What each client got done, by its name."""
        self.longest_seconds: dict[str, float] = {}
        """The longest that each of them went without."""
        self._last: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def enter(self, name: str) -> None:
        """The present task works for this client from now on."""
        task = asyncio.current_task()
        assert task is not None, "a client is a task"
        task.set_name(name)
        self._tasks.append(task)
        self.done[name] = 0
        self._last[name] = time.monotonic()

    def went_on(self) -> None:
        """The present task's client got something done."""
        task = asyncio.current_task()
        assert task is not None, "a client is a task"
        name, now = task.get_name(), time.monotonic()
        self.longest_seconds[name] = max(self.longest_seconds.get(name, 0.0), now - self._last[name])
        self._last[name] = now
        self.done[name] += 1

    async def everybody_goes_on(self, seconds: float) -> float:
        """Returns when each client has got something done since the call, with the seconds it took; fails after `seconds`."""
        before, began = dict(self.done), time.monotonic()
        while stuck := [name for name, count in before.items() if self.done[name] == count]:
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            assert time.monotonic() - began < seconds, f"nothing done in {seconds:g} s: {self._where(stuck)}"
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    def _where(self, stuck: list[str]) -> str:
        """What they wait for."""
        coroutines = {task.get_name(): task.get_coro() for task in self._tasks}
        return "; ".join(f"{name} in {' '.join(_calls(coroutines[name]))}" for name in sorted(stuck))


def _calls(coroutine: object) -> Iterator[str]:
    """The functions that wait for each other, from the outermost in."""
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        yield f"{coroutine.cr_code.co_name}:{coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
