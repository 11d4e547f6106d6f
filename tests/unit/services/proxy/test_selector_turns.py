"""Selectors of many links at once: others have their turn between them."""

import asyncio
from itertools import pairwise

import pytest

from lockstep.core.errors import Rejected
from services.proxy.selector_turns import SHORT_CHARS_MAX, SelectorTurns


async def test_others_have_their_turn_behind_each_long_selector() -> None:
    turns, seen = SelectorTurns(), []
    checked = 0

    async def check(number: int) -> None:
        nonlocal checked
        await turns.check(f"a{number} = 1 OR " * 100 + "b = 2")
        checked += 1

    checks = [asyncio.ensure_future(check(number)) for number in range(20)]
    while not all(task.done() for task in checks):
        await asyncio.sleep(0)
        seen.append(checked)
    assert all(after - before <= 1 for before, after in pairwise(seen))
    assert checked == 20


async def test_short_ones_wait_for_nobody() -> None:
    turns = SelectorTurns()
    checked = turns.check("a = 1")
    with pytest.raises(StopIteration):
        checked.send(None)


@pytest.mark.parametrize("text", ["a =", "a = 1 OR " * SHORT_CHARS_MAX])
async def test_what_is_no_selector_is_rejected(text: str) -> None:
    turns = SelectorTurns()
    for _ in range(2):
        with pytest.raises(Rejected, match="bad selector"):
            await turns.check(text)
