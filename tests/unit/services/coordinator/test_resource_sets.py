"""A coordinator's calls to resource sets, over a real session with a fake broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from lockstep.core import commands as c
from lockstep.core.branch_names import GenerationTag, ParticipantName, branch_xid, new_global_id
from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.core.xid import Xid
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_values import Entry, EtcdInDoubt
from services.coordinator.core.votes import Completion, Vote
from services.coordinator.resource_sets import ResourceSets
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.services.etcd_in_memory import EtcdInMemory

KEYS = Keys("c")
ONE, MISTYPED = ParticipantName("set:one"), ParticipantName("set:oen")


def xid_of(number: int) -> Xid:
    return branch_xid(new_global_id(1, bytes(10)), number, GenerationTag("12345678"))


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker("one") as running:
        yield running


@pytest_asyncio.fixture
async def sets(broker: FakeBroker, call_seconds: float) -> AsyncIterator[ResourceSets]:
    etcd = etcd_with(broker)
    etcd.put(KEYS.set_map(SetName("one")), b"its map")
    ports = ResourceSets(cast(EtcdClient, etcd), "c", call_seconds)
    yield ports
    await ports.close()


def etcd_with(broker: FakeBroker) -> EtcdInMemory:
    """And no set."""
    etcd = EtcdInMemory()
    etcd.put(f"{KEYS.members}B1", b'{"address": "%s"}' % broker.address.encode())
    return etcd


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


async def test_a_set_that_is_not_there_has_nothing_to_roll_back_and_no_vote(
    broker: FakeBroker, sets: ResourceSets
) -> None:
    """A mistyped name: its transaction would be told for ever."""
    assert await sets.rollback(MISTYPED, xid_of(0)) is Completion.UNKNOWN_BRANCH
    assert await sets.prepare(MISTYPED, xid_of(0), (ONE, MISTYPED)) is Vote.UNKNOWN_BRANCH
    with pytest.raises(Rejected) as raised:
        await sets.check_there(MISTYPED)
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    await sets.check_there(ONE)
    assert logged(broker) == []


@impatient
async def test_a_commit_of_a_set_that_is_not_there_is_not_acknowledged(sets: ResourceSets) -> None:
    """Whoever decided it had its vote: etcd was set back."""
    assert await sets.commit(MISTYPED, xid_of(0), one_phase=False) is Completion.UNREACHABLE


@pytest.mark.parametrize("call_seconds", [1.0])
async def test_where_etcd_does_not_answer_there_may_be_any_set(
    broker: FakeBroker, call_seconds: float
) -> None:
    class SilentEtcd(EtcdInMemory):
        async def get(self, key: str) -> Entry | None:
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "no answer")

    etcd = SilentEtcd()
    etcd.entries = etcd_with(broker).entries
    sets = ResourceSets(cast(EtcdClient, etcd), "c", call_seconds)
    await sets.check_there(MISTYPED)
    assert await sets.rollback(ONE, xid_of(0)) is Completion.ROLLED_BACK
    assert logged(broker) == [c.RollbackBranchCommand]
    await sets.close()


async def test_a_set_that_was_there_is_not_looked_up_again(broker: FakeBroker) -> None:
    """Commits in one phase do without etcd."""
    etcd = etcd_with(broker)
    sets = ResourceSets(cast(EtcdClient, etcd), "c", 30.0)
    with pytest.raises(Rejected):
        await sets.check_there(ONE)
    etcd.put(KEYS.set_map(SetName("one")), b"it was created")
    await sets.check_there(ONE)
    del etcd.entries[KEYS.set_map(SetName("one"))]
    await sets.check_there(ONE)
    await sets.close()
