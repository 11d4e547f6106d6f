"""The verbs of XA by the SDK, against a fake broker."""

import asyncio

import pytest
import pytest_asyncio

from lockstep.client import Session
from lockstep.client.resource_manager import ResourceManager
from lockstep.client.session_events import Done
from lockstep.core import commands as c
from lockstep.core.ids import SetName
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


@pytest_asyncio.fixture
async def manager(session: Session) -> ResourceManager:
    manager = await session.resource_manager("one")
    await manager.select()
    return manager


def kinds(broker: FakeBroker) -> list[type[c.Command]]:
    return [type(command) for command in broker.worlds["one"].executed()]


async def test_end_and_prepare_take_one_round_with_what_was_published(
    broker: FakeBroker, manager: ResourceManager
) -> None:
    branch = await manager.start(Xid(1, b"g", b"b"))
    broker.is_holding = True
    branch.publish("a", b"x")
    voting = asyncio.ensure_future(manager.end_and_prepare(branch.xid))
    try:
        await eventually(lambda: len(kinds(broker)) == 5)
        assert not voting.done()
    finally:
        await broker.commit()
    assert await voting is XaStatus.OK
    assert kinds(broker)[2:] == [c.PublishCommand, c.EndCommand, c.PrepareBranchCommand]


async def test_a_branch_that_starts_soon_is_done_with_in_the_round_of_its_vote(
    broker: FakeBroker, manager: ResourceManager
) -> None:
    broker.is_holding = True
    branch = await manager.start_soon(Xid(1, b"g", b"b"))
    branch.publish("a", b"x")
    branch.publish("a", b"y")
    voting = asyncio.ensure_future(manager.end_and_prepare(branch.xid))
    try:
        await eventually(lambda: len(kinds(broker)) == 6)
        assert not voting.done()
    finally:
        await broker.commit()
    assert await voting is XaStatus.OK
    commands = broker.worlds["one"].executed()
    assert kinds(broker)[1:] == [
        c.BeginCommand,
        c.StartCommand,
        c.PublishCommand,
        c.EndCommand,
        c.PrepareBranchCommand,
    ]
    end = commands[-2]
    assert isinstance(end, c.EndCommand)
    assert end.operations == 1, "though the start was not answered"


async def test_who_works_in_one_branch_after_the_other_has_their_transactions_begun_beforehand(
    broker: FakeBroker, manager: ResourceManager
) -> None:
    for number in range(6):
        branch = await manager.start_soon(Xid(1, b"g", b"%d" % number))
        branch.publish("a", b"x")
        await manager.end_and_prepare(branch.xid)
        await manager.commit(branch.xid)
    done = kinds(broker)
    starts = [index for index, kind in enumerate(done) if kind is c.StartCommand]
    before = [done[index - 1] for index in starts]
    assert before[:2] == [c.BeginCommand, c.BeginCommand]
    assert before[3:] == [c.CommitBranchCommand] * 3, "their begins were there long before"


async def test_a_session_works_in_a_branch_until_its_end_or_that_of_its_epoch(
    broker: FakeBroker, manager: ResourceManager
) -> None:
    """A later one of the same name is another branch."""
    xid = Xid(1, b"g", b"b")
    first = await manager.start(xid)
    assert manager.works_in(first)
    await manager.end(xid)
    assert not manager.works_in(first)
    second = await manager.start_soon(xid)
    assert [manager.works_in(branch) for branch in (first, second)] == [False, True]
    broker.worlds["one"].fail_over(0)
    broker.hang_up()
    await eventually(lambda: not manager.works_in(second))


@pytest.mark.parametrize(("timeout_ms", "left"), [(0, 1), (5_000, 0)])
async def test_the_transaction_of_a_start_that_is_cancelled_is_the_next_ones_or_nobodys(
    broker: FakeBroker,
    session: Session,
    manager: ResourceManager,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int,
    left: int,
) -> None:
    port, _ = await session.of_set(SetName("one"))
    submit, answered = port.submit, asyncio.Event()

    def submit_later(command: c.AnyCommand) -> "asyncio.Future[Done]":
        async def later() -> Done:
            await answered.wait()
            return await submit(command)

        return asyncio.ensure_future(later())

    monkeypatch.setattr(port, "submit", submit_later)
    starting = asyncio.ensure_future(manager.start_soon(Xid(1, b"g", b"b"), timeout_ms=timeout_ms))
    await asyncio.sleep(0.01)
    starting.cancel()
    answered.set()
    await asyncio.wait([starting])
    await eventually(lambda: kinds(broker)[-1] is (c.RollbackCommand if timeout_ms else c.BeginCommand))
    await eventually(lambda: len(port.core.window.operations) == left)
    await asyncio.sleep(0.01)
    assert len(port.reserve) == left, "one with a time-out of its own is rolled back"
