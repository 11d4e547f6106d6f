"""The Coordinator service: what it refuses before its core hears of it, and what it makes of the answer."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from lockstep.core.branch_names import PARTICIPANTS_MAX, GenerationTag, ParticipantName
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.xa import XaStatus
from lockstep.runtime.etcd import EtcdClient
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.coordinator_service import STATES, CoordinatorService
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import (
    CommitAsked,
    Effect,
    Input,
    OutcomeAnswer,
    RollbackAsked,
    State,
)
from services.coordinator.core.participant_lists import refusal_of
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.driver import CoordinatorDriver
from services.coordinator.log_pages import LogPages
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import ParticipantPorts
from services.coordinator.presence import Presence
from services.coordinator.resource_sets import ResourceSets
from tests.unit.services.etcd_in_memory import EtcdInMemory

ID, GENERATION = bytes(16), "12345678"


class Core:
    """Writes down what it hears; says how a transaction ended, if it is told to, and nothing else."""

    def __init__(self) -> None:
        self.heard: list[Input] = []
        self.ends: tuple[State, XaStatus, bool] | None = None
        """What was decided, what became of it, and whether a participant has still to hear it."""

    def handle(self, given: Input, _: Now) -> list[Effect]:
        self.heard.append(given)
        if self.ends is None or not isinstance(given, CommitAsked | RollbackAsked):
            return []
        state, heuristic, is_pending = self.ends
        name = ParticipantName("set:east")
        hazards = ((name, "heuristically rolled back"),) if heuristic else ()
        return [OutcomeAnswer(given.request, state, hazards, (name,) if is_pending else (), heuristic)]


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


async def test_of_too_many_participants_no_more_are_looked_at_than_say_so() -> None:
    core, service = made()
    names = [f"set:{number}" for number in range(100_000)]
    request = pb.CommitDistributedRequest(transaction_id=ID, generation=GENERATION, participants=names)
    asking = asyncio.ensure_future(service._commit(request))
    await asyncio.sleep(0)
    (asked,) = core.heard
    assert isinstance(asked, CommitAsked) and len(asked.participants) == PARTICIPANTS_MAX + 1
    limits = CoordinatorLimits()
    refusal = refusal_of(asked.request, asked.participants, limits)
    assert refusal is not None and refusal.code is ErrorCode.TOO_LARGE
    asking.cancel()


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
    return core, CoordinatorService(
        driver, cast(Presence, PresenceOfTest()), ports, log, cast(LogPages, None)
    )


async def test_a_commit_is_not_refused_because_of_what_an_etcd_lacks_that_was_set_back() -> None:
    """Another coordinator may have decided it, before etcd was lost and a backup from before the set put in its place; the call
    is repeated here. Who is told that it did not happen does it again."""
    etcd = EtcdInMemory()
    etcd.put(Keys("c").set_back, b"its revision was seen to be higher")
    ports = ParticipantPorts({"set": ResourceSets(cast(EtcdClient, etcd), "c", 1.0)})
    core, log = Core(), cast(LogPort, None)
    driver = CoordinatorDriver(cast(Coordinator, core), log, ports, 1.0)
    service = CoordinatorService(driver, cast(Presence, PresenceOfTest()), ports, log, cast(LogPages, None))
    request = pb.CommitDistributedRequest(
        transaction_id=ID, generation=GENERATION, participants=["set:east", "set:west"]
    )
    asking = asyncio.ensure_future(service._commit(request))
    await asyncio.wait([asking], timeout=0.05)
    assert not asking.done(), f"it is rejected: {asking.exception()}"
    assert [type(given) for given in core.heard] == [CommitAsked]
    asking.cancel()


ENDS: list[tuple[State, XaStatus, bool, str, str]] = [
    (State.COMMITTED, XaStatus.OK, False, "OK", "TRANSACTION_FINISHED"),
    (State.COMMITTED, XaStatus.OK, True, "OK", "TRANSACTION_FINISHED"),
    (State.COMMITTED, XaStatus.HEURCOM, False, "OK", "TRANSACTION_FINISHED"),
    (State.COMMITTED, XaStatus.HEURRB, False, "ROLLED_BACK", "OK"),
    (State.COMMITTED, XaStatus.HEURRB, True, "in doubt", "in doubt"),
    (State.COMMITTED, XaStatus.HEURMIX, False, "in doubt", "in doubt"),
    (State.COMMITTED, XaStatus.HEURHAZ, False, "in doubt", "in doubt"),
    (State.ROLLED_BACK, XaStatus.OK, False, "ROLLED_BACK", "OK"),
    (State.ROLLED_BACK, XaStatus.OK, True, "ROLLED_BACK", "OK"),
    (State.ROLLED_BACK, XaStatus.HEURRB, False, "ROLLED_BACK", "OK"),
    (State.ROLLED_BACK, XaStatus.HEURCOM, False, "in doubt", "in doubt"),
    (State.ROLLED_BACK, XaStatus.HEURMIX, False, "in doubt", "in doubt"),
]
"""What was decided, what became of it, whether somebody has still to hear it; what a commit is told, and a rollback."""


@pytest.mark.parametrize(("state", "heuristic", "is_pending", "committed", "rolled_back"), ENDS)
async def test_who_goes_by_the_status_alone_takes_nothing_for_what_it_is_not(
    state: State, heuristic: XaStatus, is_pending: bool, committed: str, rolled_back: str
) -> None:
    core, service = made()
    core.ends = state, heuristic, is_pending
    commit = pb.CommitDistributedRequest(transaction_id=ID, generation=GENERATION)
    rollback = pb.RollbackDistributedRequest(transaction_id=ID, generation=GENERATION)
    assert await status_of(service._commit(commit), heuristic) == committed
    assert await status_of(service._rollback(rollback), heuristic) == rolled_back


@pytest.mark.parametrize(("state", "heuristic", "is_pending", "committed", "rolled_back"), ENDS)
async def test_who_reads_the_response_is_answered_whatever_was_decided(
    state: State, heuristic: XaStatus, is_pending: bool, committed: str, rolled_back: str
) -> None:
    core, service = made()
    core.ends = state, heuristic, is_pending
    request = pb.CommitDistributedRequest(transaction_id=ID, generation=GENERATION, reads_state=True)
    answer = await service._commit(request)
    assert (answer.state, answer.heuristic, bool(answer.pending)) == (STATES[state], heuristic, is_pending)
    other = pb.RollbackDistributedRequest(transaction_id=ID, generation=GENERATION, reads_state=True)
    told = await service._rollback(other)
    assert (told.state, told.heuristic, bool(told.pending)) == (STATES[state], heuristic, is_pending)


async def status_of(asked: Awaitable[object], heuristic: XaStatus) -> str:
    """OK, the code of a rejection, or in doubt, if that says why."""
    expected = {"heuristic": heuristic, "hazards": [["set:east", "heuristically rolled back"]]}
    try:
        await asked
    except InDoubt as doubt:
        is_told = doubt.code is ErrorCode.ILLEGAL_STATE and doubt.details.items() >= expected.items()
        return "in doubt" if is_told else repr(doubt)
    except Rejected as refused:
        return refused.code.name
    return "OK"
