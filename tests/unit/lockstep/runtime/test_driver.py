"""The driver with a scripted core: order, batches, and what stops the process."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NoReturn

import pytest

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, CloseClientStream, Halt, Note, TakeApart, WakeAt
from lockstep.core.ids import SetName
from lockstep.core.inputs import AnyInput, ClientStreamClosed, Tick, Woken
from lockstep.core.pieces import PIECE_COST
from lockstep.runtime.driver import EFFECTS_MAX, TICK_SECONDS, WRITES_MAX, Core, Driver

ORDERS = SetName("orders")


class Halted(BaseException):
    """Stands for the end of the process."""


def end(reason: str, error: BaseException | None) -> NoReturn:
    raise Halted(f"{reason}: {error!r}")


class Scripted:
    """Answers each input with what the script says."""

    def __init__(self, script: Callable[[AnyInput], list[AnyEffect]]) -> None:
        self._script = script
        self.handled: list[AnyInput] = []

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        self.handled.append(given)
        return self._script(given)


def make_driver(script: Callable[[AnyInput], list[AnyEffect]]) -> tuple[Driver, Scripted, list[AnyEffect]]:
    driver, core, performed = Driver(lambda: Now(1, 2), end), Scripted(script), list[AnyEffect]()
    driver.host(ORDERS, core)
    driver.on(CloseClientStream, performed.append)
    return driver, core, performed


async def test_effects_are_performed_in_order() -> None:
    driver, _, performed = make_driver(
        lambda given: [CloseClientStream(ORDERS, 1), CloseClientStream(ORDERS, 2)]
    )
    driver.feed(Tick(ORDERS))
    await asyncio.sleep(0)
    assert performed == [CloseClientStream(ORDERS, 1), CloseClientStream(ORDERS, 2)]


async def test_all_waiting_inputs_are_fed_before_any_writer_runs() -> None:
    driver, core, _ = make_driver(lambda given: [])
    seen_by_writer: list[int] = []
    driver.on(CloseClientStream, lambda effect: None)
    for stream in range(5):
        driver.feed(ClientStreamClosed(ORDERS, stream))
    asyncio.get_running_loop().call_soon(lambda: seen_by_writer.append(len(core.handled)))
    await asyncio.sleep(0)
    assert seen_by_writer == [5]


async def test_inputs_fed_while_performing_wait_for_their_turn() -> None:
    driver, core, performed = make_driver(
        lambda given: [CloseClientStream(ORDERS, 1)] if isinstance(given, Tick) else []
    )

    def perform(effect: CloseClientStream) -> None:
        performed.append(effect)
        driver.feed(ClientStreamClosed(ORDERS, effect.stream))

    driver.on(CloseClientStream, perform)
    driver.feed(Tick(ORDERS))
    driver.drain()
    assert core.handled == [Tick(ORDERS)]
    await asyncio.sleep(0)
    assert core.handled == [Tick(ORDERS), ClientStreamClosed(ORDERS, 1)]


async def test_inputs_of_sets_that_are_not_here_are_dropped() -> None:
    driver, core, _ = make_driver(lambda given: [])
    driver.feed(Tick(SetName("billing")))
    driver.drain()
    assert core.handled == []


async def test_an_exception_in_a_core_halts_the_process() -> None:
    def fail(given: AnyInput) -> list[AnyEffect]:
        raise AssertionError("impossible")

    driver, _, _ = make_driver(fail)
    driver.feed(Tick(ORDERS))
    with pytest.raises(Halted, match=r"set orders: Tick could not be handled.*impossible"):
        driver.drain()


class Faulty(Scripted):
    """It can begin anew."""

    def __init__(self, error: Exception, again: Exception | None = None) -> None:
        super().__init__(lambda given: [])
        self._error = error
        self._again = again
        self.ended_by: list[Exception] = []

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        super().handle(given, now, more_follow)
        raise self._error

    def end_by_fault(self, error: Exception, now: Now) -> list[AnyEffect]:
        self.ended_by.append(error)
        if self._again is not None:
            raise self._again
        return [CloseClientStream(ORDERS, 7)]


def two_sets(core: Core) -> tuple[Driver, Scripted, list[AnyEffect]]:
    """ORDERS has this core, and beside it there is another set."""
    driver, other, performed = Driver(lambda: Now(1, 2), end), Scripted(lambda given: []), list[AnyEffect]()
    driver.host(ORDERS, core)
    driver.host(SetName("billing"), other)
    driver.on(CloseClientStream, performed.append)
    return driver, other, performed


async def test_an_exception_in_a_core_that_can_begin_anew_stops_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = AssertionError("impossible")
    core = Faulty(error)
    driver, other, performed = two_sets(core)
    driver.feed(Tick(ORDERS))
    driver.feed(Tick(SetName("billing")))
    with caplog.at_level(logging.CRITICAL, "lockstep.driver"):
        driver.drain()
    assert (core.ended_by, performed) == ([error], [CloseClientStream(ORDERS, 7)])
    assert other.handled == [Tick(SetName("billing"))]
    (line,) = [record for record in caplog.records if "event=set_fault" in record.getMessage()]
    assert "set=orders" in line.getMessage() and "Tick could not be handled" in line.getMessage()
    assert line.exc_info is not None and line.exc_info[1] is error


@pytest.mark.parametrize("core", [Faulty(MemoryError()), Faulty(KeyError(1), ValueError("again"))])
async def test_without_memory_and_where_a_core_cannot_begin_anew_the_process_halts(core: Faulty) -> None:
    driver, _, performed = two_sets(core)
    driver.feed(Tick(ORDERS))
    with pytest.raises(Halted, match="set orders: Tick could not be handled"):
        driver.drain()
    assert performed == []


async def test_what_cannot_be_taken_apart_holds_nobody_up() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("half done")

    def sound() -> Iterator[int]:
        yield 1
        done.append(True)

    done: list[bool] = []
    driver, _, _ = make_driver(lambda given: [TakeApart(ORDERS, broken()), TakeApart(ORDERS, sound())])
    driver.feed(Tick(ORDERS))
    driver.drain()
    async with asyncio.timeout(30):
        while not done:
            await asyncio.sleep(0.001)


async def test_an_effect_that_nobody_performs_halts_the_process() -> None:
    driver = Driver(lambda: Now(1, 2), end)
    driver.host(ORDERS, Scripted(lambda given: [CloseClientStream(ORDERS, 1)]))
    driver.feed(Tick(ORDERS))
    with pytest.raises(Halted):
        driver.drain()


async def test_halt_stops_before_the_effects_behind_it() -> None:
    driver, _, performed = make_driver(
        lambda given: [
            Note(ORDERS, "event", "words"),
            Halt(ORDERS, "two primaries"),
            CloseClientStream(ORDERS, 1),
        ]
    )
    driver.feed(Tick(ORDERS))
    with pytest.raises(Halted, match="set orders: two primaries"):
        driver.drain()
    assert performed == []


async def test_stream_numbers_are_never_given_out_twice() -> None:
    driver, _, _ = make_driver(lambda given: [])
    assert len({driver.new_stream() for _ in range(100)}) == 100


async def test_ticks_come_to_every_set() -> None:
    driver, core, _ = make_driver(lambda given: [])
    started = time.monotonic()
    ticking = asyncio.create_task(driver.run_ticks())
    async with asyncio.timeout(30):
        while core.handled.count(Tick(ORDERS)) < 3:
            await asyncio.sleep(0.01)
    ticking.cancel()
    assert time.monotonic() - started >= 3 * TICK_SECONDS


async def test_what_effects_say_is_written_once_behind_all_of_them() -> None:
    driver, _, performed = make_driver(lambda given: [CloseClientStream(ORDERS, 1)])
    written: list[int] = []

    def close(effect: CloseClientStream) -> None:
        performed.append(effect)
        driver.write_later("outbox", lambda: written.append(len(performed)))

    driver.on(CloseClientStream, close)
    for _ in range(3):
        driver.feed(Tick(ORDERS))
    await asyncio.sleep(0)
    assert written == [3]
    driver.feed(Tick(ORDERS))
    await asyncio.sleep(0)
    assert written == [3, 4]


async def test_to_many_streams_is_written_in_turns_the_first_first() -> None:
    written: list[int] = []

    def close(effect: CloseClientStream) -> None:
        driver.write_later(effect.stream, lambda: written.append(effect.stream))

    driver, _, _ = make_driver(lambda given: [CloseClientStream(ORDERS, n) for n in range(3 * WRITES_MAX)])
    driver.on(CloseClientStream, close)
    driver.feed(Tick(ORDERS))
    turns = []
    for _ in range(3):
        await asyncio.sleep(0)
        turns.append(len(written))
    assert turns == [WRITES_MAX, 2 * WRITES_MAX, 3 * WRITES_MAX]
    assert written == sorted(written)


async def test_very_many_effects_are_performed_in_turns_before_whatever_comes_next() -> None:
    many = 3 * EFFECTS_MAX
    seen: list[object] = []

    def close(effect: CloseClientStream) -> None:
        seen.append(effect.stream)
        driver.write_later("outbox", lambda: seen.append("written"))

    def answer(given: AnyInput) -> list[AnyEffect]:
        seen.append(type(given).__name__)
        return (
            [CloseClientStream(ORDERS, number) for number in range(many)] if isinstance(given, Tick) else []
        )

    driver, _, _ = make_driver(answer)
    driver.on(CloseClientStream, close)
    driver.feed(Tick(ORDERS))
    driver.feed(Woken(ORDERS))
    handled = asyncio.ensure_future(driver.handled())
    counts = []
    while not handled.done():
        counts.append(len(seen))
        await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise([*counts, len(seen)])) <= EFFECTS_MAX + 2
    assert seen == ["Tick", *range(many), "Woken", "written"]


async def test_what_is_to_be_said_before_the_end_is_written_at_once() -> None:
    written: list[int] = []
    driver, _, _ = make_driver(lambda given: [CloseClientStream(ORDERS, n) for n in range(3 * WRITES_MAX)])
    driver.on(
        CloseClientStream,
        lambda effect: driver.write_later(effect.stream, lambda: written.append(effect.stream)),
    )
    driver.feed(Tick(ORDERS))
    driver.drain(math.inf)
    assert len(written) == 3 * WRITES_MAX


async def test_what_cannot_be_written_because_of_a_bug_stops_the_process() -> None:
    def fail() -> None:
        raise IndexError

    driver, _, _ = make_driver(lambda given: [CloseClientStream(ORDERS, 1)])
    driver.on(CloseClientStream, lambda effect: driver.write_later("outbox", fail))
    driver.feed(Tick(ORDERS))
    with pytest.raises(Halted, match="could not be written"):
        driver.drain()


async def test_a_core_is_woken_when_it_asked_for_it() -> None:
    driver, core, _ = make_driver(lambda given: [WakeAt(ORDERS, 21)] if isinstance(given, Tick) else [])
    driver.feed(Tick(ORDERS))
    await asyncio.sleep(0.005)
    assert core.handled == [Tick(ORDERS)]
    await asyncio.sleep(0.1)
    assert core.handled == [Tick(ORDERS), Woken(ORDERS)]


async def test_what_nobody_has_any_more_is_taken_apart_in_pieces_with_turns_of_others_between() -> None:
    seen: list[int] = []
    taken = [0, 0]

    def work(number: int) -> Iterator[int]:
        for _ in range(10):
            taken[number] += 1
            yield PIECE_COST

    works = [work(0), work(1)]
    driver, _, _ = make_driver(lambda given: [TakeApart(ORDERS, works.pop())] if works else [])
    for _ in range(2):
        driver.feed(Tick(ORDERS))
    while sum(taken) < 20:
        await asyncio.sleep(0)
        seen.append(sum(taken))
    assert seen == sorted(seen) and set(seen) == set(range(21)), "a step at a time"
    assert taken == [10, 10]


async def test_what_a_limit_refuses_is_a_line_however_often_it_does(caplog: pytest.LogCaptureFixture) -> None:
    refused = [Note(ORDERS, "limit_reached", f"number {number}", limit="sessions_max") for number in range(3)]
    other = Note(ORDERS, "limit_reached", "of another", limit="transactions_open_max")
    driver, _, _ = make_driver(lambda given: [*refused, other])
    driver.feed(Tick(ORDERS))
    driver.drain()
    assert caplog.messages == [
        "event=limit_reached limit=sessions_max refusals=1 set=orders number 0",
        "event=limit_reached limit=transactions_open_max refusals=1 set=orders of another",
    ]
