"""Transactions by call: what a caller hears of a set that is not led."""

from typing import cast

import pytest

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries
from services.broker.transactions_service import TransactionsService
from services.primary.sessions import SessionsService

SET, B1, B2 = SetName("orders"), BrokerId("b1"), BrokerId("b2")


def service(primary: BrokerId) -> TransactionsService:
    """Of b1, where `primary` leads the set."""
    sessions = SessionsService(Driver(), ServingRights(), lambda _: [])
    view = ClusterView(Keys("c"))
    holder = Incarnation("p")
    view.sets[SET] = SetView(SetMap(SET, Epoch(1), primary, holder, (), (), (B1, B2), 1, 1, holder))
    directory = cast(Directory, None)
    return TransactionsService(
        CallerSessions(sessions), SetQueries(sessions), Forwarding(B1, view, Channels()), directory
    )


@pytest.mark.parametrize(
    ("primary", "is_forwarded", "code"),
    [(BrokerId(""), False, ErrorCode.UNAVAILABLE), (B2, True, ErrorCode.NOT_PRIMARY)],
)
async def test_commit_is_in_doubt_where_nobody_can_say_what_became_of_it(
    primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    transactions = service(primary)
    commit = pb.CommitRequest(transaction_id="orders/7.1", is_forwarded=is_forwarded)
    with pytest.raises(InDoubt) as doubt:
        await transactions._commit(commit)
    assert doubt.value.code is code
    with pytest.raises(Rejected):
        await transactions._publish(
            pb.PublishRequest(
                transaction_id="orders/7.1",
                sequence=1,
                messages=[pb.PublishRequest.OutgoingMessage()],
                is_forwarded=is_forwarded,
            )
        )
