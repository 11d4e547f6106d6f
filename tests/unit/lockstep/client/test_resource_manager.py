"""The verbs of XA by the SDK, against a fake broker."""

import asyncio

import pytest_asyncio

from lockstep.client import Session
from lockstep.client.resource_manager import ResourceManager
from lockstep.core import commands as c
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
