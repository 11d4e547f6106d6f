"""Transactions and branches by call: what a caller hears of a set that is not led, or whose primary does not know him."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import resource_manager_pb2 as rm
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.branch_calls import BranchCalls
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.own_disk import OwnDisk
from services.broker.set_queries import SetQueries
from services.broker.transactions_service import TransactionsService
from services.primary.sessions import SessionsService

SET, B1, B2 = SetName("orders"), BrokerId("b1"), BrokerId("b2")
NAME = "orders/7.1"
XID = coordinator_pb2.BranchXid(format_id=7, global_id=b"global", branch_id=b"one")
MESSAGE = pb.PublishRequest.OutgoingMessage()
SETTLE = pb.SettleRequest(
    session_id="mine",
    queue="q",
    delivery_epoch=1,
    positions=[1],
    disposition=pb.SettleRequest.DISPOSITION_ACCEPT,
)
REPEATED = {
    "publish": pb.PublishRequest(transaction_id=NAME, sequence=1, messages=[MESSAGE]),
    "accept": pb.AcceptRequest(transaction_id=NAME, sequence=1, queue="q", positions=[1]),
    "settle": SETTLE,
    "commit": pb.CommitRequest(transaction_id=NAME),
    "rollback": pb.RollbackRequest(transaction_id=NAME),
    "end_session": pb.EndSessionRequest(session_id="mine"),
}
"""Calls of the Transactions service that may be the second ones."""
VERBS: dict[str, Any] = {
    "end": rm.EndBranchRequest(xid=XID),
    "prepare": rm.BranchRequest(xid=XID),
    "commit": rm.CommitBranchRequest(xid=XID),
    "rollback": rm.BranchRequest(xid=XID),
    "forget": rm.BranchRequest(xid=XID),
    "set_timeout": rm.SetBranchTimeoutRequest(xid=XID),
}
"""The same of the ResourceManager service."""
ONCE: dict[str, Any] = {
    "begin": pb.BeginRequest(),
    "acquire": pb.AcquireRequest(resource_set=SET, queue="q"),
}
UNLED = [(BrokerId(""), False, ErrorCode.UNAVAILABLE), (B2, True, ErrorCode.NOT_PRIMARY)]
"""(who leads, whether the call was forwarded, what is said)."""


class Services:
    """Of b1, where `primary` leads the set; "": nobody does."""

    def __init__(self, primary: BrokerId, *, knows_set: bool = True) -> None:
        sessions = SessionsService(Driver(), ServingRights(), lambda _: [])
        view = ClusterView(Keys("c"))
        holder = Incarnation("p")
        if knows_set:
            entry = SetMap(SET, Epoch(1), primary, holder, (), (), (B1, B2), 1, 1, holder)
            view.sets[SET] = SetView(entry)
        own_disk = OwnDisk(Channels(), "", view)
        directory = Directory(cast(Any, None), cast(Any, None), view, Driver(), own_disk)
        around = CallerSessions(sessions), SetQueries(sessions), Forwarding(B1, view, Channels()), directory
        self.transactions = TransactionsService(*around)
        self.branches = BranchCalls(*around)

    def call(self, name: str, request: Any, *, is_branch: bool, is_forwarded: bool = False) -> Awaitable[Any]:
        asked = type(request)()
        asked.CopyFrom(request)
        asked.is_forwarded = is_forwarded
        if hasattr(asked, "resource_set") and not asked.resource_set:
            asked.resource_set = SET
        service = self.branches if is_branch else self.transactions
        answered: Awaitable[Any] = getattr(service, f"_{name}")(asked)
        return answered


async def heard(call: Awaitable[Any]) -> tuple[type[LockstepError], ErrorCode]:
    with pytest.raises(LockstepError) as raised:
        await asyncio.wait_for(call, 5)
    return type(raised.value), raised.value.code


@pytest.mark.parametrize("name", list(REPEATED))
@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
async def test_what_may_be_repeated_is_in_doubt_where_nobody_can_say_what_became_of_it(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    """The first call may have done it, and its primary died with the answer."""
    call = Services(primary).call(name, REPEATED[name], is_branch=False, is_forwarded=is_forwarded)
    assert await heard(call) == (InDoubt, code)


@pytest.mark.parametrize("name", list(VERBS))
@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
async def test_verbs_of_branches_are_in_doubt_where_nobody_can_say_what_became_of_them(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    call = Services(primary).call(name, VERBS[name], is_branch=True, is_forwarded=is_forwarded)
    assert await heard(call) == (InDoubt, code)


@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
@pytest.mark.parametrize("name", list(ONCE))
async def test_what_cannot_be_repeated_has_not_happened_where_nobody_leads(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    call = Services(primary).call(name, ONCE[name], is_branch=False, is_forwarded=is_forwarded)
    assert await heard(call) == (Rejected, code)


@pytest.mark.parametrize("name", list(REPEATED) + list(VERBS))
async def test_what_may_be_repeated_is_in_doubt_at_a_broker_that_has_not_heard_of_the_set(name: str) -> None:
    """Its view may lag behind that of the broker that served the first call."""
    services = Services(B1, knows_set=False)
    for requests, is_branch in ((REPEATED, False), (VERBS, True)):
        if name in requests:
            call = services.call(name, requests[name], is_branch=is_branch)
            assert await heard(call) == (InDoubt, ErrorCode.UNKNOWN_SET)


async def test_a_settle_of_a_session_that_the_next_primary_does_not_know_is_in_doubt() -> None:
    """It may have been accepted before the failover."""
    assert await heard(Services(B1).call("settle", SETTLE, is_branch=False)) == (
        InDoubt,
        ErrorCode.UNKNOWN_SESSION,
    )


async def test_what_is_wrong_whoever_says_it_is_rejected() -> None:
    nothing = pb.CommitRequest(transaction_id="no name")
    call = Services(BrokerId("")).transactions._commit(nothing)
    assert await heard(call) == (Rejected, ErrorCode.INVALID_ARGUMENT)
