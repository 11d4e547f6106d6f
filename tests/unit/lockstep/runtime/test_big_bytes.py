"""Big bytes are copied a part at a time, and put together by a thread, with which the loop has nothing to do."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from time import thread_time

import pytest

from lockstep.core.pieces import at_once
from lockstep.runtime.big_bytes import BIG_BYTES, PART_BYTES, copied, digested, joined
from lockstep.runtime.turns import LeftToThread, in_turns

BIG = 5 * BIG_BYTES + 3
LONG_SECONDS = 0.01
"""Of processor time; as much is copied here in several times as long."""


def pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251 + 1)


def left_by(steps: Generator[LeftToThread, None, bytes]) -> list[LeftToThread]:
    """What each step left to a thread."""
    return list(steps)


def test_what_is_big_is_copied_in_parts_and_joined_by_a_thread() -> None:
    *parts, last = left_by(copied(memoryview(bytes(BIG))))
    assert len(parts) == -(-BIG // PART_BYTES) and not any(parts)
    assert isinstance(last, Future)


def test_what_is_less_is_copied_at_once() -> None:
    assert left_by(copied(memoryview(bytes(BIG_BYTES - 1)))) == []
    assert left_by(joined([bytes(BIG_BYTES - 2), b"x"])) == []


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, BIG_BYTES - 1, BIG_BYTES, BIG_BYTES + 1, BIG])
async def test_all_of_it_is_there(size: int) -> None:
    data = pattern(size)[:size]
    assert await in_turns(copied(memoryview(data))) == data
    assert at_once(copied(memoryview(data))) == data
    parts = [data[at : at + 100_000] for at in range(0, size, 100_000)]
    assert await in_turns(joined(parts)) == data


async def test_others_have_their_turn_meanwhile() -> None:
    source = memoryview(bytes(64 << 20))
    copying = asyncio.ensure_future(in_turns(copied(source)))
    steps = list[float]()
    while not copying.done():
        before = thread_time()
        await asyncio.sleep(0)
        steps.append(thread_time() - before)
    assert copying.result() == source
    assert len(steps) > 10 and max(steps) < LONG_SECONDS


async def test_the_loop_goes_on_while_a_thread_puts_parts_together() -> None:
    joining = asyncio.ensure_future(in_turns(joined([bytes(BIG)] * 4)))
    turns = 0
    while not joining.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(joining.result()) == 4 * BIG
    assert turns > 20, "the interpreter is held all the time"


async def test_whoever_no_longer_waits_hears_nothing_of_it() -> None:
    copying = asyncio.ensure_future(in_turns(joined([bytes(BIG)] * 2)))
    await asyncio.sleep(0)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert await in_turns(joined([bytes(BIG)] * 2)) == bytes(2 * BIG)


@pytest.mark.parametrize("size", [10, BIG])
async def test_other_parts_have_another_digest(size: int) -> None:
    data = pattern(size)[:size]
    known = await in_turns(digested([data, b"x"]))
    assert at_once(digested([bytes(bytearray(data)), b"x"])) == known
    for others in ([data], [b"x", data], [data + b"x"], [data[:-1] + b"\xff", b"x"], [data, b"x", b""]):
        assert at_once(digested(others)) != known
    assert len(left_by(digested([data]))) == (size == BIG), "what is big has a thread"
