"""What a coordinator's port to its log does beside single changes: leases of outcomes, and listings."""

import asyncio
from typing import cast

import pytest

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName, new_global_id
from lockstep.core.decision_log import NO_LIST, DecisionKeys, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_values import EtcdInDoubt, LeaseGranted
from services.coordinator.core.messages import (
    DeleteTransaction,
    ListLog,
    LogInDoubt,
    LogListed,
    LogWritten,
    Ticket,
)
from services.coordinator.log_port import ENTRIES_AT_ONCE, OUTCOMES_PER_LEASE, LogPort
from services.coordinator.presence import Presence
from tests.unit.services.etcd_in_memory import EtcdInMemory


class SlowEtcd(EtcdInMemory):
    """Grants a lease some turns of the event loop later, or `is_silent`."""

    is_silent = False
    asked = 0

    async def lease_grant(self, ttl_seconds: int, lease_id: int = 0) -> LeaseGranted:
        self.asked += 1
        for _ in range(5):
            await asyncio.sleep(0)
        if self.is_silent:
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "no answer")
        return await super().lease_grant(ttl_seconds, lease_id)


@pytest.fixture
def etcd() -> SlowEtcd:
    return SlowEtcd()


@pytest.fixture
def port(etcd: SlowEtcd) -> LogPort:
    presence = Presence(cast(EtcdClient, etcd), "c", Incarnation("me"), "here:1", 5)
    return LogPort(cast(EtcdClient, etcd), "c", presence, outcome_ms=600_000)


async def delete(port: LogPort, *numbers: int) -> list[type]:
    """Of transactions that have left the log already, as far as its compares say; answers what came of it."""
    ids = [GlobalId(new_global_id(1, number.to_bytes(10))) for number in numbers]
    effects = [
        DeleteTransaction(Ticket(number), global_id, NO_LIST, None, OutcomeEntry(Verdict.COMMIT))
        for number, global_id in zip(numbers, ids, strict=True)
    ]
    answers = await asyncio.gather(*(port.perform(effect, boottime_ms()) for effect in effects))
    return [type(answer) for answer in answers]


def outcomes_by_lease(etcd: SlowEtcd) -> list[int]:
    leases = [entry.lease_id for entry in etcd.entries.values()]
    return [leases.count(granted.lease_id) for granted in etcd.granted]


async def test_a_lease_takes_a_limited_number_of_outcomes(etcd: SlowEtcd, port: LogPort) -> None:
    """etcd deletes them all at once, and everybody's writes wait."""
    for first in range(0, 2_500, 100):
        assert await delete(port, *range(first, first + 100)) == [LogWritten] * 100
    assert outcomes_by_lease(etcd) == [OUTCOMES_PER_LEASE, OUTCOMES_PER_LEASE, 500]


async def test_deletions_at_the_same_time_share_their_grants(etcd: SlowEtcd, port: LogPort) -> None:
    assert await delete(port, *range(2_500)) == [LogWritten] * 2_500
    assert outcomes_by_lease(etcd) == [OUTCOMES_PER_LEASE, OUTCOMES_PER_LEASE, 500]


async def test_a_grant_that_nobody_answers_is_in_doubt_for_all_that_wait_and_asked_for_again(
    etcd: SlowEtcd, port: LogPort
) -> None:
    etcd.is_silent = True
    assert await delete(port, *range(10)) == [LogInDoubt] * 10
    assert etcd.asked == 1
    etcd.is_silent = False
    assert await delete(port, *range(10)) == [LogWritten] * 10
    assert (etcd.asked, outcomes_by_lease(etcd)) == (2, [10])


async def test_whoever_gives_up_takes_nobody_elses_grant_along(etcd: SlowEtcd, port: LogPort) -> None:
    first = asyncio.ensure_future(delete(port, 1))
    second = asyncio.ensure_future(delete(port, 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert await second == [LogWritten]
    assert outcomes_by_lease(etcd) == [1]


async def test_others_have_their_turn_while_a_long_list_is_read(etcd: SlowEtcd, port: LogPort) -> None:
    keys, pages = DecisionKeys("c"), 10
    names, tag = (ParticipantName("set:a"), ParticipantName("set:b")), GenerationTag("12345678")
    entry = ParticipantsEntry(names, tag, Incarnation("me"), 1).encode()
    ids = [GlobalId(new_global_id(1, number.to_bytes(10))) for number in range(pages * ENTRIES_AT_ONCE // 2)]
    for global_id in ids:
        etcd.put(keys.participants(global_id), entry)
        etcd.put(keys.decision(global_id), Verdict.COMMIT.encode())
    etcd.put(f"{keys.all_coordinators}me", b"")
    listing = asyncio.ensure_future(port.perform(ListLog(Ticket(1)), boottime_ms()))
    turns = 0
    while not listing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= pages
    listed = await listing
    assert isinstance(listed, LogListed)
    assert [one.global_id for one in listed.transactions] == ids
    assert {one.decision for one in listed.transactions} == {Verdict.COMMIT} and listed.owners == {"me"}
