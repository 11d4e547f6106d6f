"""`lockstep tx` on a real cluster: what is in doubt is listed, ended by an operator, and forgotten."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from lockstep.client.client import connect
from lockstep.core.errors import Rejected
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.coordination import ClientTransaction
from tests.integration.coordinator_processes import Coordinators
from tests.integration.operators import lockstep, read


@pytest_asyncio.fixture
async def deployment(tmp_path_factory: Any) -> AsyncGenerator[Deployment]:
    sets = {name: SETS[name] for name in ("east", "west")}
    async with deployed(tmp_path_factory.mktemp("cluster"), sets=sets) as deployment:
        yield deployment


async def test_a_branch_in_doubt_is_listed_ended_and_forgotten(deployment: Deployment) -> None:
    xids = [Xid(7, b"transaction", b"%d" % number) for number in range(2)]
    async with await connect(deployment.addresses) as client, client.session() as session:
        for name, xid in zip(("east", "west"), xids, strict=True):
            await session.declare_queue(f"{name}.q", set_name=name)
            manager = await session.resource_manager(name)
            await manager.select()
            branch = await manager.start(xid)
            await branch.publish(f"{name}.q", [b"in doubt"])
            assert await manager.end(xid) is XaStatus.OK
            assert await manager.prepare(xid) is XaStatus.OK

        listed = await read(deployment, "tx", "list")
        assert [(each["xid"], each["set"], each["state"]) for each in listed] == [
            (str(xids[0]), "east", "prepared"),
            (str(xids[1]), "west", "prepared"),
        ]
        assert len(await read(deployment, "tx", "show", str(xids[0]))) == 2, "its siblings too"
        status, out, _ = await lockstep(deployment, "tx", "list")
        assert status == 0
        assert str(xids[0]) in out

        status, _, err = await lockstep(deployment, "tx", "commit", str(xids[0]))
        assert status == 1
        assert "--heuristic" in err
        assert len(await read(deployment, "tx", "list")) == 2, "nothing was done"

        await read(deployment, "tx", "commit", str(xids[0]), "--heuristic")
        await read(deployment, "tx", "rollback", str(xids[1]), "--heuristic")
        states = {each["xid"]: each["state"] for each in await read(deployment, "tx", "list")}
        assert states == {
            str(xids[0]): "heuristically committed",
            str(xids[1]): "heuristically rolled back",
        }
        assert [message.body async for message in session.browse("east.q")] == [b"in doubt"]
        assert [message.body async for message in session.browse("west.q")] == []
        manager = await session.resource_manager("east")
        assert await manager.rollback(xids[0]) is XaStatus.HEURCOM
        for xid in xids:
            await read(deployment, "tx", "forget", str(xid))
        assert await read(deployment, "tx", "list") == []


async def test_what_a_coordinator_knows_is_shown(deployment: Deployment) -> None:
    coordinators = Coordinators(deployment)
    coordinator = await coordinators.start()
    try:
        async with await connect(deployment.addresses) as client, client.session() as session:
            transaction = await ClientTransaction.begin(coordinator, ["set:east", "set:west"])
            managers = [await session.resource_manager(name) for name in ("east", "west")]
            for manager, xid in zip(managers, transaction.xids, strict=True):
                await manager.select()
                await manager.start(xid)
                assert await manager.end(xid) is XaStatus.OK
            await transaction.close(coordinator)
            assert await managers[0].prepare(transaction.xids[0]) is XaStatus.OK
            (listed,) = await read(deployment, "tx", "list")
            assert (listed["decision"], listed["distributed_transaction"]) == (
                "undecided",
                transaction.transaction_id.hex(),
            )
            assert [each["participant"] for each in listed["participants"]] == ["set:east", "set:west"]
            taken = await read(deployment, "tx", "recover", "--coordinators", coordinator.address)
            assert taken == {"taken_up": []}, "its client is still to come"
            await transaction.rollback(coordinator)
            assert await read(deployment, "tx", "list") == []
    finally:
        await coordinators.stop()


async def test_a_participant_that_was_mistyped_is_shown_and_given_up(deployment: Deployment) -> None:
    coordinators = Coordinators(deployment)
    coordinator = await coordinators.start()
    typo = "grpc://127.0.0.1:1/rows"
    try:
        transaction = await ClientTransaction.begin(coordinator, ["set:east"])
        with pytest.raises(Rejected, match="nobody answers at"):
            await transaction.enlist(coordinator, typo)
        # As if it had been there when it was enlisted.
        transaction.participants.append(typo)
        await transaction.rollback(coordinator)
        name = transaction.transaction_id.hex()
        (listed,) = await read(deployment, "tx", "list", "--all")
        (shown,) = await read(deployment, "tx", "show", name)
        assert (listed["distributed_transaction"], listed["decision"]) == (name, "rolled back")
        ended = {each["participant"]: each["ended"] for each in shown["participants"]}
        assert ended["set:east"] and not ended[typo]
        assert await read(deployment, "tx", "list") == [], "it is young, and may end by itself"
        status, _, err = await lockstep(deployment, "tx", "give-up", name, "set:east")
        assert (status, "comes back" in err) == (1, True), err
        given_up = await read(deployment, "tx", "give-up", name, typo)
        assert (given_up["participant"], given_up["decision"]) == (typo, "rolled back")
        assert await transaction.listed(coordinator) == []
        assert await read(deployment, "tx", "list", "--all") == []
        status, _, err = await lockstep(deployment, "tx", "give-up", name, typo)
        assert (status, "does not end such a transaction" in err) == (1, True), err
    finally:
        await coordinators.stop()


async def test_what_is_no_branch_is_refused_by_name(deployment: Deployment) -> None:
    for words, said in (
        (("show", "7:00:00"), "no resource set has a branch 7:00:00"),
        (("forget", "nonsense"), "format:global:branch"),
        (("commit", "7:00:00", "--heuristic"), "no resource set has a branch"),
    ):
        status, _, err = await lockstep(deployment, "tx", *words)
        assert (status, said in err) == (1, True), err
