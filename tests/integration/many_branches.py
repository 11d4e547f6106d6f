"""Very many prepared branches in one set, the death of its primary, and what its successor says of them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.client.client import connect
from lockstep.client.consumer import Message
from lockstep.client.resource_manager import ResourceManager
from lockstep.client.session import Session
from lockstep.core.xa import BranchState, XaStatus
from lockstep.core.xid import Xid
from tests.integration.cluster import Deployment

FORMAT_ID = 7
"""Not our coordinator's: nobody ends these branches by itself."""
WINDOW = 200
"""Branches that are prepared at once."""
QUIET_SECONDS = 0.5
"""For a message that is locked to be delivered, if it were not."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was seen, and how long it took; seconds."""

    branches: int
    prepare_seconds: float
    """All of them, from their start to their votes."""
    promotion_seconds: float
    """From the death of the primary until its successor has answered a `recover()`: all of what follows is in it."""
    recover_seconds: float
    """One more `recover()`, from a client that knows the primary."""
    commit_seconds: float
    """All of them, half of them by a rollback."""


async def recover_many(deployment: Deployment, set_name: str, count: int) -> Recovery:
    """Prepares `count` branches, each of which accepts a message from `in` and publishes one to `out`; kills the primary; checks
    that the next one has all of them in `recover()` and their messages locked; ends half of them each way.
    """
    xids = [Xid(FORMAT_ID, b"recovery", b"%06d" % number) for number in range(count)]
    async with await connect(deployment.addresses) as client, client.session() as session:
        for queue in ("in", "out"):
            await session.declare_queue(queue, set_name=set_name)
        await session.publish("in", [xid.branch_id for xid in xids])
        began = time.monotonic()
        await _prepare_all(session, set_name, xids)
        prepare_seconds = time.monotonic() - began

    primary = await deployment.primary_of(set_name)
    killed_at = time.monotonic()
    await deployment[primary].broker.kill()
    async with await connect(deployment.addresses) as client, client.session() as session:
        manager = await session.resource_manager(set_name)
        await _check_recovered(manager, xids)
        promotion_seconds = time.monotonic() - killed_at
        began = time.monotonic()
        await _check_recovered(manager, xids)
        recover_seconds = time.monotonic() - began
        assert await deployment.primary_of(set_name) != primary
        await _check_locked(session)
        began = time.monotonic()
        await _end_all(manager, xids)
        commit_seconds = time.monotonic() - began
        assert await manager.recover() == []
        await _check_ended(session, xids)
    return Recovery(count, prepare_seconds, promotion_seconds, recover_seconds, commit_seconds)


async def _prepare_all(session: Session, set_name: str, xids: Sequence[Xid]) -> None:
    manager = await session.resource_manager(set_name)
    await manager.select(has_many_branches=True)

    async def prepare(xid: Xid, message: Message) -> None:
        branch = await manager.start(xid)
        branch.accept(message)
        branch.publish("out", [xid.branch_id])
        assert await manager.end(xid) is XaStatus.OK
        assert await manager.prepare(xid) is XaStatus.OK

    async with await session.consume("in", credit=WINDOW) as messages:
        for first in range(0, len(xids), WINDOW):
            window = xids[first : first + WINDOW]
            taken = [await anext(messages) for _ in window]
            await asyncio.gather(*(prepare(xid, message) for xid, message in zip(window, taken, strict=True)))


async def _check_recovered(manager: ResourceManager, xids: Sequence[Xid]) -> None:
    found = await manager.recover()
    assert [Xid.decode(branch.xid) for branch in found] == list(xids)
    assert {(branch.state, branch.operations) for branch in found} == {(BranchState.PREPARED, 2)}


async def _check_locked(session: Session) -> None:
    """What they have accepted is given to nobody, what they publish is not seen."""
    assert [message.body async for message in session.browse("out")] == []
    async with await session.consume("in") as messages:
        assert await messages.next(QUIET_SECONDS) is None, "a locked message was delivered"


async def _end_all(manager: ResourceManager, xids: Sequence[Xid]) -> None:
    for first in range(0, len(xids), WINDOW):
        ends = [
            manager.rollback(xid) if number % 2 else manager.commit(xid)
            for number, xid in enumerate(xids[first : first + WINDOW], first)
        ]
        assert set(await asyncio.gather(*ends)) == {XaStatus.OK}


async def _check_ended(session: Session, xids: Sequence[Xid]) -> None:
    committed, rolled_back = [xid.branch_id for xid in xids[::2]], [xid.branch_id for xid in xids[1::2]]
    assert sorted([message.body async for message in session.browse("out")]) == committed
    assert [message.body async for message in session.browse("in")] == rolled_back, "in their order"
