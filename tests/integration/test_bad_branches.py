"""Bad input to a resource manager, over the wire: typed errors that carry verb, branch and state; the session goes on."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lockstep.client.client import connect
from lockstep.client.resource_manager import ResourceManager, XaError
from lockstep.core.ids import SetName
from lockstep.core.xa import BranchState, XaStatus
from lockstep.core.xid import Xid
from tests.integration.cluster import deployed

VERBS: dict[str, Callable[[ResourceManager, Xid], Awaitable[object]]] = {
    "start": lambda manager, xid: manager.start(xid),
    "end": lambda manager, xid: manager.end(xid),
    "prepare": lambda manager, xid: manager.prepare(xid),
    "commit": lambda manager, xid: manager.commit(xid),
    "rollback": lambda manager, xid: manager.rollback(xid),
    "forget": lambda manager, xid: manager.forget(xid),
    "set-timeout": lambda manager, xid: manager.set_timeout(xid, 1),
    "get-timeout": lambda manager, xid: manager.get_timeout(xid),
    "end-heuristically": lambda manager, xid: manager.end_heuristically(xid, commit=True),
}
QUEUES = ("in", "other")
MALFORMED = (
    Xid(-1, b"g", b"b"),
    Xid(2**31, b"g", b"b"),
    Xid(7, b"", b"b"),
    Xid(7, b"g" * 65, b"b"),
    Xid(7, b"g", b"b" * 65),
)


async def refused(verb: str, manager: ResourceManager, xid: Xid) -> tuple[int, BranchState]:
    """The exception's number and the state that the verb met."""
    with pytest.raises(XaError) as caught:
        await VERBS[verb](manager, xid)
    error = caught.value
    assert (error.verb, error.xid, error.details["verb"], error.details["xid"]) == (verb, xid, verb, str(xid))
    return error.exception, error.state


async def refused_late(manager: ResourceManager, xid: Xid) -> int:
    """The exception of a start that was not waited for; what was done behind it has to go nowhere, and to hold nothing."""
    branch = await manager.start_soon(xid)
    for queue in QUEUES:
        branch.publish(queue, b"in a branch that was refused")
    with pytest.raises(XaError) as caught:
        await manager.end(xid)
    assert caught.value.verb == "start"
    return caught.value.exception


async def test_bad_input_is_answered_with_verb_branch_and_state(tmp_path: Path) -> None:
    async with (
        deployed(tmp_path, sets={"east": ["B1"]}, brokers=1) as deployment,
        await connect(deployment.addresses) as client,
        client.session() as session,
    ):
        manager = await session.resource_manager("east")
        xid = Xid(7, b"global", b"branch")
        assert (await refused("start", manager, xid))[0] == 503, "dtx was not selected"
        await manager.select()
        for malformed in MALFORMED:
            for verb in VERBS:
                assert await refused(verb, manager, malformed) == (542, BranchState.UNKNOWN), verb
        for verb in VERBS:
            if verb != "start":
                expected = 409 if verb == "end" else 404
                assert await refused(verb, manager, xid) == (expected, BranchState.UNKNOWN), verb

        await manager.start(xid)
        for seconds in (-1, 3600.001, 1e12, float("inf"), float("nan")):
            with pytest.raises(XaError) as caught:
                await manager.set_timeout(xid, seconds)
            assert caught.value.exception == 542
        assert await manager.get_timeout(xid) == 60
        for verb in ("prepare", "commit", "rollback", "forget", "end-heuristically"):
            assert await refused(verb, manager, xid) == (409, BranchState.ACTIVE), verb
        assert await manager.end_and_prepare(xid) is XaStatus.OK
        with pytest.raises(XaError) as caught:
            await manager.end_and_prepare(xid)
        assert (caught.value.verb, caught.value.exception) == ("end", 409), "though it is prepared"
        assert await refused("start", manager, xid) == (530, BranchState.PREPARED)
        assert await refused("end", manager, xid) == (409, BranchState.PREPARED)
        for queue in QUEUES:
            await session.declare_queue(queue)
        assert await refused_late(manager, xid) == 530, "it is prepared"
        assert await manager.rollback(xid) is XaStatus.OK, "nothing of all this did any harm"

        first = await manager.start_soon(xid)
        first.publish(QUEUES[0], b"x")
        assert await refused_late(manager, xid) == 503, "the session works in that branch already"
        assert await manager.prepare(xid) is XaStatus.OK, "it has all that was done in it"
        assert await manager.commit(xid) is XaStatus.OK
        assert [[message.body async for message in session.browse(queue)] for queue in QUEUES] == [[b"x"], []]
        begun_beforehand = len((await session.of_set(SetName("east")))[0].reserve)
        assert (await session.describe("east")).open_transactions == begun_beforehand

        branch = await manager.start(xid)
        branch.publish("no such queue", b"x")
        assert await manager.end_and_prepare(xid) is XaStatus.RBROLLBACK
        assert await manager.rollback(xid) is XaStatus.OK
