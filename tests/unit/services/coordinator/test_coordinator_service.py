"""The Coordinator service: what it refuses before its core hears of it."""

import asyncio
from typing import Any, cast

import pytest

from lockstep.core.branch_names import GenerationTag
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.etcd import EtcdClient
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.coordinator_service import CoordinatorService
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import CommitAsked, Effect, Input, RollbackAsked
from services.coordinator.driver import CoordinatorDriver
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import ParticipantPorts
from services.coordinator.presence import Presence
from services.coordinator.resource_sets import ResourceSets
from tests.unit.services.etcd_in_memory import EtcdInMemory

ID, GENERATION = bytes(16), "12345678"


class Core:
    """Writes down what it hears, and answers nothing."""

    def __init__(self) -> None:
        self.heard: list[Input] = []

    def handle(self, given: Input, _: Now) -> list[Effect]:
        self.heard.append(given)
        return []


class PresenceOfTest:
    generation = GenerationTag(GENERATION)


@pytest.mark.parametrize(
    ("verb", "request_"),
    [
        ("_begin", pb.BeginDistributedRequest(participants=["set:esat"])),
        (
            "_enlist",
            pb.EnlistParticipantRequest(
                transaction_id=ID, generation=GENERATION, number=0, participant="set:esat"
            ),
        ),
        (
            "_close",
            pb.CloseDistributedRequest(transaction_id=ID, generation=GENERATION, participants=["set:esat"]),
        ),
    ],
    ids=["begin", "enlist", "close"],
)
async def test_a_set_that_is_not_there_takes_part_in_nothing(verb: str, request_: Any) -> None:
    core, service = made()
    with pytest.raises(Rejected) as raised:
        await getattr(service, verb)(request_)
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT and "'esat'" in raised.value.message
    assert core.heard == []


async def test_what_names_a_set_that_is_not_there_can_be_rolled_back() -> None:
    core, service = made()
    request = pb.RollbackDistributedRequest(
        transaction_id=ID, generation=GENERATION, participants=["set:esat"]
    )
    asking = asyncio.ensure_future(service._rollback(request))
    await asyncio.sleep(0)
    assert [type(given) for given in core.heard] == [RollbackAsked]
    asking.cancel()


def made() -> tuple[Core, CoordinatorService]:
    """In a cluster without sets."""
    core = Core()
    ports = ParticipantPorts({"set": ResourceSets(cast(EtcdClient, EtcdInMemory()), "c", 1.0)})
    log = cast(LogPort, None)
    driver = CoordinatorDriver(cast(Coordinator, core), log, ports, 1.0)
    return core, CoordinatorService(driver, cast(Presence, PresenceOfTest()), ports, log)


async def test_a_commit_is_not_refused_because_of_what_an_etcd_lacks_that_was_set_back() -> None:
    """Another coordinator may have decided it, before etcd was lost and a backup from before the set put in its place; the call
    is repeated here. Who is told that it did not happen does it again."""
    etcd = EtcdInMemory()
    etcd.put(Keys("c").set_back, b"its revision was seen to be higher")
    ports = ParticipantPorts({"set": ResourceSets(cast(EtcdClient, etcd), "c", 1.0)})
    core, log = Core(), cast(LogPort, None)
    driver = CoordinatorDriver(cast(Coordinator, core), log, ports, 1.0)
    service = CoordinatorService(driver, cast(Presence, PresenceOfTest()), ports, log)
    request = pb.CommitDistributedRequest(
        transaction_id=ID, generation=GENERATION, participants=["set:east", "set:west"]
    )
    asking = asyncio.ensure_future(service._commit(request))
    await asyncio.wait([asking], timeout=0.05)
    assert not asking.done(), f"it is rejected: {asking.exception()}"
    assert [type(given) for given in core.heard] == [CommitAsked]
    asking.cancel()
