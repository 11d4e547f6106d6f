"""Outbox: order, batches, limits and ends."""

import asyncio

from lockstep.runtime.outbox import ITEMS_MAX, Outbox


async def test_what_gathered_leaves_together_and_in_order() -> None:
    outbox = Outbox[int]()
    for item in range(3):
        outbox.put(item, 10)
    assert await outbox.take(1000) == [0, 1, 2]
    assert outbox.bytes_waiting == 0


async def test_a_batch_ends_at_the_limit_but_holds_at_least_one_item() -> None:
    outbox = Outbox[str]()
    outbox.put("big", 500)
    outbox.put("small", 60)
    outbox.put("other", 60)
    assert await outbox.take(100) == ["big"]
    assert await outbox.take(100) == ["small"]
    assert outbox.bytes_waiting == 60


async def test_the_writer_wakes_when_something_comes() -> None:
    outbox = Outbox[int]()
    taking = asyncio.create_task(outbox.take(100))
    await asyncio.sleep(0)
    outbox.put(1)
    outbox.put(2)
    assert await taking == [1, 2]


async def test_finish_lets_out_what_was_put_before() -> None:
    outbox = Outbox[int]()
    outbox.put(1)
    outbox.finish()
    outbox.put(2)
    assert await outbox.take(100) == [1]
    assert await outbox.take(100) == []


async def test_abort_drops_everything_and_wakes_the_writer() -> None:
    outbox = Outbox[int]()
    taking = asyncio.create_task(outbox.take(100))
    await asyncio.sleep(0)
    outbox.abort()
    assert await taking == []
    assert outbox.is_finished


async def test_whoever_fills_it_waits_until_there_is_room() -> None:
    outbox = Outbox[int]()
    outbox.put(1, 100)
    outbox.put(2, 100)
    waiting = asyncio.create_task(outbox.wait_below(100))
    await asyncio.sleep(0)
    await outbox.take(100)
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.take(100)
    await waiting


async def test_an_end_frees_those_who_wait_for_room() -> None:
    outbox = Outbox[int]()
    outbox.put(1, 100)
    waiting = asyncio.create_task(outbox.wait_below(100))
    await asyncio.sleep(0)
    outbox.abort()
    await waiting


async def test_who_puts_may_write_while_the_writer_waits() -> None:
    outbox, written = Outbox[int](), list[list[int]]()

    def write(items: list[int]) -> bool:
        written.append(items)
        return True

    taking = asyncio.create_task(outbox.take(100))
    await asyncio.sleep(0)
    outbox.put(1, 60, wakes=False)
    outbox.put(2, 60, wakes=False)
    outbox.write_now(100, write)
    assert (written, outbox.bytes_waiting, len(outbox)) == ([[1], [2]], 0, 0)
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put(3)
    assert await taking == [3]


async def test_what_could_not_be_written_now_is_left_to_the_writer_whole_and_in_order() -> None:
    outbox = Outbox[int]()
    taking = asyncio.create_task(outbox.take(100))
    await asyncio.sleep(0)
    for item in (1, 2, 3):
        outbox.put(item, 60, wakes=False)
    outbox.write_now(100, lambda items: items == [1])
    assert outbox.bytes_waiting == 120
    assert await taking == [2]
    assert await outbox.take(100) == [3]


async def test_nothing_is_written_now_while_the_writer_is_at_work() -> None:
    outbox, written = Outbox[int](), list[list[int]]()

    def write(items: list[int]) -> bool:
        written.append(items)
        return True

    outbox.put(1)
    assert await outbox.take(100) == [1]
    outbox.put(2, wakes=False)
    outbox.write_now(100, write)
    assert written == []
    assert await outbox.take(100) == [2]


async def test_who_waits_for_room_goes_on_when_it_was_written_now() -> None:
    outbox = Outbox[int]()
    taking = asyncio.create_task(outbox.take(100))
    await asyncio.sleep(0)
    outbox.put(1, 100, wakes=False)
    filling = asyncio.create_task(outbox.wait_below(50))
    await asyncio.sleep(0)
    outbox.write_now(100, lambda items: True)
    await filling
    taking.cancel()


async def test_a_batch_has_no_more_items_than_one_step_encodes() -> None:
    outbox = Outbox[int]()
    for item in range(ITEMS_MAX + 1):
        outbox.put(item, 1)
    assert await outbox.take(1 << 20) == list(range(ITEMS_MAX))
    assert await outbox.take(1 << 20) == [ITEMS_MAX]
