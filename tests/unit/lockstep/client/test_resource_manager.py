"""The verbs of XA by the SDK, against a fake broker."""

import asyncio

import lockstep
from lockstep.core import commands as c
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


async def test_end_and_prepare_take_one_round_with_what_was_published() -> None:
    async with FakeBroker("one") as broker:
        broker.directory["a"] = "one"
        async with await lockstep.connect(broker.address) as client, client.session() as session:
            manager = await session.resource_manager("one")
            await manager.select()
            branch = await manager.start(Xid(1, b"g", b"b"))
            broker.is_holding = True
            branch.publish("a", b"x")
            voting = asyncio.ensure_future(manager.end_and_prepare(branch.xid))
            try:
                await eventually(lambda: len(broker.worlds["one"].executed()) == 5)
                assert not voting.done()
            finally:
                await broker.commit()
            assert await voting is XaStatus.OK
            kinds = [type(command) for command in broker.worlds["one"].executed()]
            assert kinds[2:] == [c.PublishCommand, c.EndCommand, c.PrepareBranchCommand]
