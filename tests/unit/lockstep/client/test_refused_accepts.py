"""Accepts that cannot be done: no transaction commits without them, and their messages are in nobody's hands."""

import asyncio

import pytest
import pytest_asyncio

from lockstep.client import Client, Message, Rejected, Session, TransactionState
from lockstep.client.resource_manager import Branch, ResourceManager
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import SetName
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator

XID = Xid(7, b"t", b"0")


@pytest_asyncio.fixture
async def message(broker: FakeBroker, session: Session) -> Message:
    """Of queue "a", in hand; its consumer is closed."""
    async with await session.consume("a", credit=8) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        return await anext(consumer)


@pytest_asyncio.fixture
async def branch(session: Session) -> tuple[ResourceManager, Branch]:
    """Driven by hand."""
    manager = await session.resource_manager("one")
    await manager.select()
    return manager, await manager.start(XID)


async def lose_session(broker: FakeBroker, session: Session) -> None:
    """The set ends it, in the same epoch, as after its time-out."""
    port, _ = await session.of_set(SetName("one"))
    broker.worlds["one"].ended.add(broker.streams[0][1].session)
    broker.hang_up()
    await eventually(lambda: port.lost_sessions and port.is_attached)


async def in_hand(session: Session) -> bool:
    port, _ = await session.of_set(SetName("one"))
    return bool(port.core.line.held.by_queue())


@pytest.mark.parametrize("kind", ["transaction", "distributed_transaction"])
async def test_nothing_commits_without_the_accept_of_a_message_whose_session_was_lost(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, message: Message, kind: str
) -> None:
    await lose_session(broker, session)
    tx = getattr(session, kind)()
    await tx.publish("b", b"made of it")
    with pytest.raises(Rejected) as raised:
        await tx.accept(message)
    assert raised.value.code is ErrorCode.STALE_DELIVERY
    with pytest.raises(Rejected):
        await tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    assert "Commit" not in coordinator.asked
    assert not any(isinstance(one, c.CommitCommand) for one in broker.worlds["one"].executed())


async def test_a_branch_cannot_commit_without_the_accept_of_a_message_whose_session_was_lost(
    broker: FakeBroker, session: Session, message: Message
) -> None:
    await lose_session(broker, session)
    manager = await session.resource_manager("one")
    await manager.select()
    branch = await manager.start(XID)
    branch.publish("b", b"made of it")
    with pytest.raises(Rejected) as raised:
        branch.accept(message)
    assert raised.value.code is ErrorCode.STALE_DELIVERY
    await manager.end(XID)
    (end,) = [one for one in broker.worlds["one"].executed() if isinstance(one, c.EndCommand)]
    assert end.operations == 2, "the set, which got one, has it rolled back"


async def test_a_branch_cannot_commit_without_the_accept_of_another_sessions_message(
    broker: FakeBroker, client: Client, branch: tuple[ResourceManager, Branch]
) -> None:
    manager, work = branch
    async with client.session() as other, await other.consume("a", credit=8) as consumer:
        await eventually(lambda: len(broker.streams) == 2 and len(broker.streams[1][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        message = await anext(consumer)
        with pytest.raises(Rejected) as raised:
            work.accept(message)
        assert raised.value.code is ErrorCode.ILLEGAL_STATE
        await message.release()
    await manager.end(XID)
    (end,) = [one for one in broker.worlds["one"].executed() if isinstance(one, c.EndCommand)]
    assert end.operations == 1


@pytest.mark.parametrize("gives_up", [False, True])
async def test_what_a_branch_could_not_accept_returns_to_its_queue(
    broker: FakeBroker,
    session: Session,
    message: Message,
    branch: tuple[ResourceManager, Branch],
    gives_up: bool,
) -> None:
    """Also where nobody waits for the answer any more."""
    _, work = branch
    broker.refused_accepts["a"] = ErrorCode.ROLLBACK_ONLY  # A publish before it met a full queue.
    accepting = work.accept(message)
    if gives_up:
        accepting.cancel()
    else:
        with pytest.raises(Rejected):
            await accepting
    await eventually(lambda: isinstance(broker.worlds["one"].executed()[-1], c.SettleCommand))
    released = broker.worlds["one"].executed()[-1]
    assert isinstance(released, c.SettleCommand)
    assert (released.disposition, released.positions) == (c.Disposition.RELEASE, (1,))
    assert not await in_hand(session)


async def test_what_could_not_be_accepted_returns_to_its_queue_though_its_answer_comes_behind_the_rollback(
    broker: FakeBroker, session: Session, message: Message
) -> None:
    """A set that does not answer for a while holds nobody up; when it does, the message is still in this session's hands."""
    tx = session.transaction()
    await tx.publish("c", b"in another set")
    await tx.publish("b", b"x")
    broker.refused_accepts["a"] = ErrorCode.ROLLBACK_ONLY
    broker.is_holding = True
    await tx.accept(message)
    await tx.rollback()
    await broker.commit()
    async with asyncio.timeout(10):
        while await in_hand(session):
            await asyncio.sleep(0.005)


async def test_a_vote_is_not_given_for_what_was_accepted_twice(
    broker: FakeBroker, message: Message, branch: tuple[ResourceManager, Branch]
) -> None:
    manager, work = branch
    await work.accept(message)
    with pytest.raises(Rejected):
        work.accept(message)
    assert await manager.end(XID) is XaStatus.OK, "the fake counts nothing"
    (end,) = [one for one in broker.worlds["one"].executed() if isinstance(one, c.EndCommand)]
    assert end.operations == 2
