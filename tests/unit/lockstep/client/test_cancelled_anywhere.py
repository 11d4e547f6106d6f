"""Whoever is cancelled in a transaction, wherever he waits, leaves nothing open that others would wait for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.client import Session
from lockstep.core import commands as c
from lockstep.core.ids import Epoch, LogIndex, SetName, TransactionKey
from tests.unit.lockstep.client.at_wait import AtWait, run
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator
from tests.unit.lockstep.client.fake_primary import FakeSet

SETS = ("one", "two")
KINDS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "of one set": (Session.transaction, ("a", "b")),
    "that becomes a distributed one": (Session.transaction, ("a", "c", "b")),
    "distributed": (Session.distributed_transaction, ("a", "c", "b")),
}
"""What makes a transaction, and the queues that it publishes to."""


def left_open(world: FakeSet) -> set[TransactionKey | bytes]:
    """Transactions that were begun and nobody ended, and xids of branches that a session still works in."""
    found: set[TransactionKey | bytes] = set()
    for index, entry in enumerate(world.log, 1):
        if entry.code:
            continue
        match entry.command:
            case c.BeginCommand():
                found.add((LogIndex(index), entry.epoch))
            case c.CommitCommand(transaction=key, begins=begins):
                found.discard(key)
                found |= {(LogIndex(index - begins + number), Epoch(entry.epoch)) for number in range(begins)}
            case c.RollbackCommand(transaction=key):
                found.discard(key)
            case c.StartCommand(xid=xid, transaction=key):
                found.discard(key or b"")
                found.add(xid)
            case c.EndCommand(xid=xid):
                found.discard(xid)
    return found


async def begun_beforehand(session: Session) -> set[TransactionKey | bytes]:
    found: set[TransactionKey | bytes] = set()
    for name in SETS:
        port, _ = await session.of_set(SetName(name))
        found |= {key for key, _ in port.reserve._begun}
    return found


@pytest.mark.parametrize("delay_seconds", [0, 0.003])
@pytest.mark.parametrize("timeout_ms", [0, 5_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_that_is_cancelled_leaves_nothing_open(
    broker: FakeBroker,
    coordinator: FakeCoordinator,
    session: Session,
    kind: str,
    timeout_ms: int,
    delay_seconds: float,
) -> None:
    """Delayed, what it waits for has been said by then, and perhaps answered."""
    make, queues = KINDS[kind]
    for queue in queues:
        await session.publish(queue, b"warm")
    place, ended = 0, None
    while not ended:
        place += 1
        transaction = make(session, timeout_ms=timeout_ms)

        async def work(transaction: Any = transaction) -> None:
            async with transaction:
                for queue in queues:
                    await transaction.publish(queue, b"x")

        def cancel() -> None:
            task = asyncio.current_task()
            assert task is not None, "called in one"
            if delay_seconds:
                asyncio.get_running_loop().call_later(delay_seconds, task.cancel)
            else:
                task.cancel()

        coordinator.asked.clear()
        working = AtWait(work(), place, cancel)
        error = await run(working)
        ended = working.waits < place
        assert error is None or isinstance(error, asyncio.CancelledError)

        async def is_nothing_open() -> bool:
            found = set().union(*(left_open(broker.worlds[name]) for name in SETS))
            return not found - await begun_beforehand(session)

        async with asyncio.timeout(30):
            while not await is_nothing_open():
                await asyncio.sleep(0.002)
        if transaction.id and "Begin" in coordinator.asked:
            await eventually(lambda: {"Commit", "Rollback"} & set(coordinator.asked))
    assert place > 2, "it waits somewhere"
