"""Whoever attaches behind messages that go back waits for them."""

import asyncio

from services.proxy.returning import Returning


async def test_an_attach_waits_for_what_goes_back_to_its_queue() -> None:
    returning = Returning()
    confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    returning.note("q", confirmation)
    await returning.over("another")
    waiting = asyncio.ensure_future(returning.over("q"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    confirmation.set_result(1)
    await waiting
    assert len(returning) == 0


async def test_what_cannot_be_given_back_is_over_too() -> None:
    returning = Returning()
    confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    returning.note("q", confirmation)
    confirmation.cancel()
    await returning.over("q")
    await asyncio.sleep(0)
    assert len(returning) == 0
