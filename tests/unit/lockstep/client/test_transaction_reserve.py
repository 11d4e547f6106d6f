"""Transactions that are begun beforehand: taken once, while they are good, and given back."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import transaction_reserve
from lockstep.client.session_events import Done
from lockstep.client.transaction_reserve import RESERVE_MAX, TransactionReserve
from lockstep.core import commands as c
from lockstep.core.ids import Epoch, LogIndex, TransactionKey


class Port:
    """A session in a set, which hears what is rolled back."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transactions: dict[TransactionKey, Callable[[], None]] = {}
        self.rolled_back: list[TransactionKey] = []
        self.ended: set[TransactionKey] = set()

    def submit(self, command: c.AnyCommand) -> "asyncio.Future[Done]":
        assert isinstance(command, c.RollbackCommand)
        self.rolled_back.append(command.transaction)
        return asyncio.get_running_loop().create_future()

    def is_open(self, key: TransactionKey) -> bool:
        return key not in self.ended


def key(index: int) -> TransactionKey:
    return LogIndex(index), Epoch(1)


async def stocked(takes: int = 4) -> tuple[Port, TransactionReserve]:
    """A reserve of which so many were asked for, and then a commit has begun some."""
    port = Port()
    reserve = TransactionReserve(port)
    for _ in range(takes):
        assert reserve.take() is None
    begins = reserve.begins()
    reserve.begun(begins, [key(index) for index in range(1, begins + 1)])
    return port, reserve


async def test_as_many_are_begun_as_were_taken_lately_and_each_is_taken_once() -> None:
    port, reserve = await stocked(4)
    assert len(reserve) == 4 == len(port.transactions)
    taken = [reserve.take() for _ in range(5)]
    assert taken == [(1, 1), (2, 1), (3, 1), (4, 1), None]
    assert not port.transactions


async def test_who_takes_one_now_and_then_has_none_begun() -> None:
    _, reserve = await stocked(1)
    assert len(reserve) == 0


async def test_begins_under_way_count_and_there_is_a_limit() -> None:
    reserve = TransactionReserve(Port())
    begins = 0
    for _ in range(100):
        reserve.take()
        begins += reserve.begins()
    assert begins == RESERVE_MAX


async def test_what_a_failover_ended_is_not_given_out() -> None:
    port, reserve = await stocked(3)
    port.transactions.pop((LogIndex(2), Epoch(1)))()
    assert [reserve.take(), reserve.take(), reserve.take()] == [(1, 1), (3, 1), None]


async def test_what_a_failover_ended_is_not_given_out_though_it_was_not_told_yet() -> None:
    port, reserve = await stocked(3)
    port.ended = {key(1), key(3)}
    assert [reserve.take(), reserve.take()] == [(2, 1), None]
    assert not port.transactions and not port.rolled_back


async def test_what_nobody_takes_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_reserve, "AGE_SECONDS_MAX", 0.02)
    port, reserve = await stocked(3)
    while len(port.rolled_back) < 3:
        await asyncio.sleep(0.01)
    assert len(reserve) == 0
    assert not port.transactions


async def test_where_a_commit_has_begun_none_the_next_one_is_asked() -> None:
    reserve = TransactionReserve(Port())
    reserve.take()
    reserve.take()
    assert reserve.begins() == 2
    assert reserve.begins() == 0
    reserve.begun(2, ())
    assert reserve.take() is None
    assert reserve.begins() == 3


async def test_what_has_ended_before_it_was_heard_of_is_not_kept() -> None:
    port = Port()
    reserve = TransactionReserve(port)
    reserve.take()
    reserve.take()
    port.ended.add(key(1))
    reserve.begun(reserve.begins(), [key(1), key(2)])
    assert [reserve.take(), reserve.take()] == [key(2), None]
