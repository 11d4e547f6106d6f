"""A process that starts and is told to stop meanwhile; a level of the log that is none."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

from lockstep.runtime import process
from lockstep.runtime.process import started


async def test_a_start_that_comes_to_its_end_is_one() -> None:
    assert await started(asyncio.sleep(0), asyncio.Event())


async def test_a_start_is_given_up_when_the_process_is_told_to_stop() -> None:
    stopping, ends = asyncio.Event(), list[str]()

    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("given up")

    asyncio.get_running_loop().call_later(0.01, stopping.set)
    async with asyncio.timeout(5):
        assert not await started(start(), stopping)
    assert ends == ["given up"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_start_that_misses_the_first_request_is_given_up_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "CANCEL_SECONDS", 0.01)
    stopping = asyncio.Event()

    async def start() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    asyncio.get_running_loop().call_later(0.01, stopping.set)
    async with asyncio.timeout(5):
        assert not await started(start(), stopping)


async def test_what_a_start_fails_with_is_raised() -> None:
    async def start() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await started(start(), asyncio.Event())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_gives_up_waiting_for_a_start_gives_it_up() -> None:
    starting = asyncio.Event()
    waiting = asyncio.ensure_future(started(_wait(starting), asyncio.Event()))
    await starting.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def _wait(starting: asyncio.Event) -> None:
    starting.set()
    await asyncio.Event().wait()


@pytest.mark.parametrize("level", ["verbose", ""])
def test_a_level_of_the_log_that_is_none_is_said_in_a_sentence(level: str) -> None:
    ended = subprocess.run(
        (sys.executable, "-c", "from lockstep.runtime.process import set_up_logging as s; s()"),
        env={**os.environ, "LOCKSTEP_LOG": level},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (f"LOCKSTEP_LOG is one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not {level!r}\n")
