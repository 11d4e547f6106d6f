"""Transactions that are begun beforehand: taken once, while they are good, and given back."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import transaction_reserve
from lockstep.client.session_events import CommandDone
from lockstep.client.transaction_reserve import RESERVE_MAX, TransactionReserve
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, TransactionKey


class Port:
    """A session in a set: what is submitted is answered by the test."""

    def __init__(self) -> None:
        self.transactions: dict[TransactionKey, Callable[[], None]] = {}
        self.waiting: list[asyncio.Future[CommandDone]] = []
        self.rolled_back: list[TransactionKey] = []
        self.last = 0

    def submit(self, command: c.AnyCommand) -> "asyncio.Future[CommandDone]":
        future: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        if isinstance(command, c.RollbackCommand):
            self.rolled_back.append(command.transaction)
        else:
            self.waiting.append(future)
        return future

    def is_open(self, key: TransactionKey) -> bool:
        return True

    async def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            self.last += 1
            future.set_result(CommandDone(None, self.last, (LogIndex(self.last), Epoch(1))))
        await asyncio.sleep(0)


async def stocked(takes: int = 4) -> tuple[Port, TransactionReserve]:
    port = Port()
    reserve = TransactionReserve(port)
    for _ in range(takes):
        assert reserve.take() is None
    reserve.restock()
    await port.answer()
    return port, reserve


async def test_as_many_are_begun_as_were_taken_lately_and_each_is_taken_once() -> None:
    port, reserve = await stocked(4)
    assert len(reserve) == 4 == len(port.transactions)
    taken = [reserve.take() for _ in range(5)]
    assert taken == [(1, 1), (2, 1), (3, 1), (4, 1), None]
    assert not port.transactions


async def test_who_takes_one_now_and_then_has_none_begun() -> None:
    port, reserve = await stocked(1)
    assert len(reserve) == 0
    assert not port.waiting


async def test_begins_under_way_count_and_there_is_a_limit() -> None:
    port = Port()
    reserve = TransactionReserve(port)
    for _ in range(100):
        reserve.take()
        reserve.restock()
    assert len(port.waiting) == RESERVE_MAX


async def test_what_a_failover_ended_is_not_given_out() -> None:
    port, reserve = await stocked(3)
    port.transactions.pop((LogIndex(2), Epoch(1)))()
    assert [reserve.take(), reserve.take(), reserve.take()] == [(1, 1), (3, 1), None]


async def test_what_nobody_takes_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_reserve, "AGE_SECONDS_MAX", 0.02)
    port, reserve = await stocked(3)
    while len(port.rolled_back) < 3:
        await asyncio.sleep(0.01)
    assert len(reserve) == 0
    assert not port.transactions


async def test_a_begin_that_is_refused_is_missed_by_nobody() -> None:
    port = Port()
    reserve = TransactionReserve(port)
    reserve.take()
    reserve.take()
    reserve.restock()
    for future in port.waiting:
        future.set_exception(Rejected(ErrorCode.UNAVAILABLE, "too many are open"))
    await asyncio.sleep(0)
    assert reserve.take() is None
