"""The watch over an event loop: what is a long step, what is none, and who hears of it."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.runtime.loop_watch import REPORTS, LongStep, LoopWatch, functions_in, watching, written_down

LONG_SECONDS = 0.2
"""In these tests: much more than the watch needs to see a step, also where it waits for its own turn."""


def use(seconds: float) -> None:
    """Of this thread's processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def use_in_one_call() -> float:
    """Much of it, and nobody else gets the interpreter meanwhile; answers how much."""
    begun = time.thread_time()
    sum(range(100_000_000))
    return time.thread_time() - begun


class LateEvent(threading.Event):
    """A host that wakes whoever waits long behind their time."""

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(2 * LONG_SECONDS)
        return self.is_set()


async def watched(
    work: Callable[[], None], seconds: float = 0.1, stopping: Callable[[], threading.Event] = threading.Event
) -> list[LongStep]:
    """What is found while a callback of the loop does this, and in so many seconds behind its first step."""
    found: list[LongStep] = []
    watch = LoopWatch("this", LONG_SECONDS, found.append)
    watch._stopping = stopping()
    watch.start()
    await asyncio.sleep(0.1)
    asyncio.get_running_loop().call_soon(work)
    await asyncio.sleep(seconds)
    watch.stop()
    assert watch.long_steps == len(found)
    return found


async def test_a_step_that_is_too_long_is_found_with_its_stack() -> None:
    (step,) = await watched(lambda: use(2 * LONG_SECONDS))
    assert LONG_SECONDS < step.seconds < 4 * LONG_SECONDS
    assert step.process == "this"
    assert "use" in functions_in(step)
    assert "use (lockstep/runtime/test_loop_watch.py:" in str(step)


async def test_a_call_that_lets_nobody_look_is_found_when_it_has_ended() -> None:
    used: list[float] = []
    found: list[LongStep] = []
    for _ in range(3):
        # The watch's thread has to wait for the interpreter by then, and on a busy machine it waits for a processor at times.
        found = found or await watched(lambda: used.append(use_in_one_call()))
    (step,) = found
    assert step.seconds > max(LONG_SECONDS, min(used) / 2)


@pytest.mark.parametrize("stopping", [threading.Event, LateEvent])
async def test_many_short_steps_are_none_that_is_long(stopping: Callable[[], threading.Event]) -> None:
    """However late the watch comes to look."""

    def go_on() -> None:
        use(LONG_SECONDS / 40)
        asyncio.get_running_loop().call_soon(go_on)

    assert await watched(go_on, 15 * LONG_SECONDS, stopping) == []


async def test_a_step_that_waits_is_none_that_is_long() -> None:
    assert await watched(lambda: time.sleep(3 * LONG_SECONDS)) == []


async def test_what_was_found_is_written_down_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORTS, str(tmp_path))
    with watching("this") as watch:
        await asyncio.sleep(0.1)
        begun = time.monotonic() - 0.05
        use(0.5)
        async with asyncio.timeout(10):
            while not watch.long_steps:
                await asyncio.sleep(0.01)
        ended = time.monotonic()
        (samples, longest) = watch.samples()
    assert (samples.value, longest.value) == (1, watch.longest_seconds)
    assert watch.longest_seconds > 0.3
    (step,) = written_down(tmp_path)
    assert (step.process, step.seconds) == ("this", watch.longest_seconds)
    assert begun <= step.began <= ended - step.seconds
