"""The Cluster service: a set is handed over by command, and nobody is told that it is led before it is served."""

import asyncio
from typing import Any

import pytest

from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation
from lockstep.core.inputs import StoreLost
from lockstep.runtime.driver import Driver
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker import accepted_loss, cluster_service
from services.broker.cluster_service import ClusterService
from tests.unit.services.etcd_in_memory import EtcdInMemory
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, entry, frames, member, seen


class NamedByTheMap:
    """This broker's view, forwarding and report: the map names it; `replica` says what it does about that."""

    def __init__(self) -> None:
        self.said = pb.Replica(resource_set=SET, role=pb.ROLE_LEARNER, trouble="ready", epoch=1)

    def is_here(self, _: object) -> bool:
        return True

    def set_map(self, _: object) -> object:
        return entry(1, member("a"))

    def replica(self, _: object) -> pb.Replica:
        return self.said

    def serve(self) -> None:
        self.said = pb.Replica(resource_set=SET, role=pb.ROLE_PRIMARY, epoch=1, commit_index=7)


def service_of(broker: Any, etcd: Any = None, driver: Driver | None = None) -> ClusterService:
    nobody: Any = None
    return ClusterService(
        BrokerId("a"),
        Incarnation("p1"),
        etcd,
        broker,
        driver or Driver(),
        broker,
        nobody,
        broker,
        nobody,
        nobody,
        nobody,
    )


async def promoted(broker: NamedByTheMap) -> pb.PromoteResponse:
    request = pb.PromoteRequest(resource_set=SET, broker="a")
    return await service_of(broker)._promote(request)


async def test_whoever_is_to_lead_is_promoted_when_it_serves() -> None:
    broker = NamedByTheMap()
    asyncio.get_running_loop().call_later(0.2, broker.serve)
    answer = await promoted(broker)
    assert (answer.primary, answer.epoch, answer.commit_index) == ("a", 1, 7)


async def test_one_that_does_not_serve_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_service, "CHANGE_SECONDS", 0.1)
    with pytest.raises(Rejected, match=r"^a is to lead set .* and does not serve it$") as raised:
        await promoted(NamedByTheMap())
    assert raised.value.code is ErrorCode.UNAVAILABLE


async def test_a_loss_that_would_be_accepted_in_vain_changes_no_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It concerns every set of the cluster."""
    monkeypatch.setattr(accepted_loss, "READY_SECONDS", 0.1)
    monkeypatch.setattr(cluster_service, "CHANGE_SECONDS", 0.1)
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.feed(seen(entry(1, member("b")), 10))
    bench.feed(StoreLost(SET))
    driver, etcd, keys = Driver(), EtcdInMemory(), Keys("c")
    driver.host(SET, bench.replica)
    etcd.put(keys.generation, b"g1")
    broker: Any = NamedByTheMap()
    broker.keys, broker.generation = keys, "g1"
    request = pb.AcceptDataLossRequest(resource_set=SET, broker="a", accept_data_loss=True)
    with pytest.raises(Rejected, match="nothing was changed") as raised:
        await service_of(broker, etcd, driver)._accept_data_loss(request)
    assert raised.value.code is ErrorCode.ILLEGAL_STATE
    assert etcd.entries[keys.generation].value == b"g1"


async def test_who_waits_in_vain_for_a_loss_to_be_taken_hears_what_stands_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store may have refused what nobody knew before; whether it happens yet is in doubt all the same."""
    monkeypatch.setattr(cluster_service, "CHANGE_SECONDS", 0.1)
    service = service_of(NamedByTheMap())
    for why, text in (
        ("it is in the snapshot", r"within 0\.1 s: it is in the snapshot$"),
        ("", r"within 0\.1 s$"),
    ):
        with pytest.raises(InDoubt, match=text):
            await service._primary_above(SET, BrokerId("a"), Epoch(1), lambda why=why: why)  # type: ignore[misc]


def test_names_in_the_directory_are_changed_by_no_call() -> None:
    """Only a set's primary claims and releases them, under its lease; a call could take a name from a queue that is there."""
    methods = [method.name for method in pb.DESCRIPTOR.services_by_name["Cluster"].methods]
    assert "Locate" in methods
    assert not [name for name in methods if name.endswith("Name")]
