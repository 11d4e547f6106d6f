"""A transaction that two tasks end: one of them does, and neither is told what is not so."""

import asyncio

import pytest

from lockstep.client import Rejected, Session, TransactionState
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator


async def test_of_two_commits_that_wait_for_the_begin_one_is_done(
    broker: FakeBroker, session: Session
) -> None:
    await session.publish("a", b"warm")
    world = broker.worlds["one"]
    world.loses_begins = broker.is_holding = True
    transaction = session.transaction()
    publishing = asyncio.ensure_future(transaction.publish("a", b"x"))
    await eventually(lambda: any(isinstance(entry.command, c.BeginCommand) for entry in world.log))
    commits = [asyncio.ensure_future(transaction.commit()) for _ in range(2)]
    await asyncio.sleep(0)
    world.loses_begins = False
    await broker.commit()
    await publishing
    done, refused = await asyncio.gather(*commits, return_exceptions=True)
    assert done is None
    assert isinstance(refused, Rejected)
    assert refused.code is ErrorCode.TRANSACTION_FINISHED
    assert transaction.state is TransactionState.COMMITTED
    assert sum(isinstance(one, c.CommitCommand) for one in world.executed()) == 1


@pytest.mark.parametrize("queues", ["ab", "ac"])
async def test_a_rollback_beside_a_commit_is_refused_and_the_commit_goes_on(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, queues: str
) -> None:
    """It would be told that nothing happened."""
    transaction = session.distributed_transaction()
    for queue in queues:
        await transaction.publish(queue, b"x")
    broker.is_holding = True
    committing = asyncio.ensure_future(transaction.commit())
    await eventually(lambda: any(isinstance(one, c.EndCommand) for one in broker.worlds["one"].executed()))
    with pytest.raises(Rejected) as raised:
        await transaction.rollback()
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    await broker.commit()
    await committing
    assert transaction.state is TransactionState.COMMITTED
    assert "Rollback" not in coordinator.asked
