"""A coordinator's calls to resource sets, over a real session with a fake broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from lockstep.core import commands as c
from lockstep.core.branch_names import GenerationTag, ParticipantName, branch_xid, new_global_id
from lockstep.core.cluster_map import Keys
from lockstep.core.xid import Xid
from lockstep.runtime.etcd import EtcdClient
from services.coordinator.core.votes import Completion, Vote
from services.coordinator.resource_sets import ResourceSets
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.services.etcd_in_memory import EtcdInMemory

ONE = ParticipantName("set:one")


def xid_of(number: int) -> Xid:
    return branch_xid(new_global_id(1, bytes(10)), number, GenerationTag("12345678"))


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker("one") as running:
        yield running


@pytest_asyncio.fixture
async def sets(broker: FakeBroker, call_seconds: float) -> AsyncIterator[ResourceSets]:
    etcd = EtcdInMemory()
    etcd.put(f"{Keys('c').members}B1", b'{"address": "%s"}' % broker.address.encode())
    ports = ResourceSets(cast(EtcdClient, etcd), "c", call_seconds)
    yield ports
    await ports.close()


@pytest.fixture
def call_seconds() -> float:
    return 30.0


impatient = pytest.mark.parametrize("call_seconds", [0.01])


def logged(broker: FakeBroker) -> list[type[c.Command]]:
    return [type(entry.command) for entry in broker.worlds["one"].log if entry.command is not None]


@impatient
async def test_a_branch_of_a_set_that_commits_nothing_is_told_once_however_often_it_is_asked(
    broker: FakeBroker, sets: ResourceSets
) -> None:
    broker.is_holding = True
    for _ in range(20):
        assert await sets.rollback(ONE, xid_of(0)) is Completion.UNREACHABLE
    assert await sets.rollback(ONE, xid_of(1)) is Completion.UNREACHABLE
    await eventually(lambda: len(logged(broker)) >= 2)
    assert logged(broker) == [c.RollbackBranchCommand] * 2


async def test_whoever_asks_again_hears_the_answer_to_what_was_asked_first(
    broker: FakeBroker, sets: ResourceSets
) -> None:
    broker.is_holding = True
    first = asyncio.ensure_future(sets.prepare(ONE, xid_of(0), (ONE,)))
    await eventually(lambda: len(logged(broker)) == 1)
    first.cancel()
    again = asyncio.ensure_future(sets.prepare(ONE, xid_of(0), (ONE,)))
    await asyncio.sleep(0)
    await broker.commit()
    assert await again is Vote.OK
    assert logged(broker) == [c.PrepareBranchCommand]


@pytest.mark.parametrize("one_phase", [False, True])
async def test_what_was_answered_is_asked_anew(
    broker: FakeBroker, sets: ResourceSets, one_phase: bool
) -> None:
    for _ in range(2):
        assert await sets.commit(ONE, xid_of(0), one_phase=one_phase) is Completion.COMMITTED
    assert logged(broker) == [c.CommitBranchCommand] * 2


@impatient
async def test_a_verb_does_not_wait_for_another_of_its_branch(broker: FakeBroker, sets: ResourceSets) -> None:
    broker.is_holding = True
    assert await sets.prepare(ONE, xid_of(0), (ONE,)) is Vote.UNREACHABLE
    assert await sets.rollback(ONE, xid_of(0)) is Completion.UNREACHABLE
    await eventually(lambda: logged(broker) == [c.PrepareBranchCommand, c.RollbackBranchCommand])
