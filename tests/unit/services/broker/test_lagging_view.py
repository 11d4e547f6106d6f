"""A broker that does not know all that the cluster knows says so: no answer of it is final because of that."""

from typing import Any, cast

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, SetName
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1 import transactions_pb2
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from tests.unit.services.replicas import entry, member


class View:
    """Of etcd; it has heard of set "east", and of no broker."""

    class keys:  # noqa: N801
        @staticmethod
        def set_map(name: str) -> str:
            return f"/sets/{name}/map"

    def set_map(self, name: str) -> object:
        return entry(1, member("a")) if name == "east" else None

    def address(self, _broker: BrokerId) -> None:
        return None

    def candidates(self, _name: str) -> list[str]:
        return []


class Etcd:
    """Has set "north", too; what is asked of it is kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def value(self, key: str) -> bytes | None:
        self.asked.append(key)
        return b"map" if key == "/sets/north/map" else None

    def refuse_lost(self, *_: object) -> None:
        """Nothing is lost."""

    def core(self, _: object) -> None:
        return None


async def located(etcd: Any, name: str) -> pb.LocateResponse:
    directory = Directory(etcd, etcd, cast(Any, View()), etcd, etcd)
    return await directory.locate(pb.LocateRequest(kind=pb.LocateRequest.KIND_SET, name=name))


async def test_a_set_that_another_broker_has_just_created_is_not_refused() -> None:
    with pytest.raises(Rejected) as raised:
        await located(Etcd(), "north")
    assert raised.value.code is ErrorCode.UNAVAILABLE, "ask another one, or later"


async def test_a_set_that_etcd_does_not_have_is_refused() -> None:
    with pytest.raises(Rejected) as raised:
        await located(Etcd(), "nroth")
    assert raised.value.code is ErrorCode.UNKNOWN_SET


@pytest.mark.parametrize("name", ["", "north/map", "n\x00", "n" * 256])
async def test_what_is_no_name_of_a_set_is_not_looked_for(name: str) -> None:
    etcd = Etcd()
    view: Any = View()
    view.sets = {}
    directory = Directory(cast(Any, etcd), cast(Any, etcd), view, cast(Any, etcd), cast(Any, etcd))
    with pytest.raises(Rejected) as raised:
        await directory.locate(pb.LocateRequest(kind=pb.LocateRequest.KIND_SET, name=name))
    assert raised.value.code is ErrorCode.UNKNOWN_SET
    assert not etcd.asked


async def test_a_primary_that_is_not_registered_here_may_be_elsewhere() -> None:
    """For an outcome, say: NOT_FOUND would be an answer."""
    forwarding = Forwarding(BrokerId("B2"), cast(Any, View()), cast(Any, None))
    request = transactions_pb2.GetOutcomeRequest(transaction_id="east/4.1")
    with pytest.raises(Rejected) as raised:
        await forwarding.at_primary(
            SetName("east"),
            "Transactions/GetOutcome",
            request,
            transactions_pb2.GetOutcomeResponse,
            cast(Any, None),
            is_read=True,
        )
    assert raised.value.code is ErrorCode.UNAVAILABLE
