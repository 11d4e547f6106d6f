"""Pages of a coordinator's list: each transaction is on one of them, and no page is long."""

from typing import cast

import pytest

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName
from lockstep.core.clock import Now
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Incarnation
from lockstep.core.xa import XaStatus
from lockstep.runtime.etcd import Entry, EtcdClient, EtcdRejected
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import CommitAsked, RequestId
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.log_pages import PAGE_MAX, LogPages
from tests.unit.services.etcd_in_memory import EtcdInMemory

KEYS = DecisionKeys("c")
NAMES = (ParticipantName("set:a"), ParticipantName("set:b"))
GENERATION = GenerationTag("12345678")
ME = Incarnation("me")


class CountingEtcd(EtcdInMemory):
    """Remembers how many entries were read in one go, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []
        self.is_away = False

    async def get_page(self, prefix: str, after: str, limit: int) -> list[Entry]:
        if self.is_away:
            raise EtcdRejected(ErrorCode.UNAVAILABLE, "away")
        found = await super().get_page(prefix, after, limit)
        self.read.append(len(found))
        return found


class Rig:
    def __init__(self) -> None:
        self.etcd = CountingEtcd()
        self.core = Coordinator(ME, CoordinatorLimits())
        self.pages = LogPages(cast(EtcdClient, self.etcd), "c", self.core)
        self.etcd.put(KEYS.coordinator(ME), b"")

    def log(self, number: int, decision: Verdict | None = None, owner: Incarnation = ME) -> None:
        entry = ParticipantsEntry(NAMES, GENERATION, owner, 1)
        self.etcd.put(KEYS.participants(name(number)), entry.encode())
        if decision is not None:
            self.etcd.put(KEYS.decision(name(number)), decision.encode())

    def keep(self, number: int) -> None:
        entry = OutcomeEntry(Verdict.COMMIT, ((NAMES[0], "rolled back"),), XaStatus.HEURMIX)
        self.etcd.put(KEYS.heuristic(name(number)), entry.encode())

    def hold(self, number: int) -> None:
        self.core.handle(CommitAsked(RequestId(number), name(number), GENERATION, NAMES, False), Now(1, 1))

    async def all(self, page_size: int = 0) -> list[pb.ListDistributedResponse]:
        pages, token = list[pb.ListDistributedResponse](), b""
        while token or not pages:
            request = pb.ListDistributedRequest(page_size=page_size, page_token=token)
            pages.append(await self.pages.page(request))
            token = pages[-1].next_page_token
        return pages


def name(number: int) -> GlobalId:
    return GlobalId(number.to_bytes(16))


def numbers(some: "list[bytes]") -> list[int]:
    return [int.from_bytes(each) for each in some]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 0])
async def test_all_that_there_is_comes_once_and_in_order(rig: Rig, page_size: int) -> None:
    for number in (1, 2, 5, 6, 9, 10, 11):
        rig.log(number, Verdict.COMMIT if number % 2 else None)
    for number in (3, 9, 12):
        rig.keep(number)
    for number in (4, 5, 13, 14):
        rig.hold(number)
    pages = await rig.all(page_size)
    listed = [one for page in pages for one in page.transactions]
    assert numbers([one.transaction_id for one in listed]) == [1, 2, 4, 5, 6, 9, 10, 11, 13, 14]
    kept = [one.transaction_id for page in pages for one in page.heuristics]
    assert numbers(kept) == [3, 9, 12]
    committed = [one.transaction_id for one in listed if one.state == pb.DISTRIBUTED_STATE_COMMITTED]
    assert numbers(committed) == [1, 5, 9, 11]
    phases = [one.transaction_id for one in listed if one.phase]
    assert numbers(phases) == [4, 5, 13, 14]
    if page_size:
        assert max(len(page.transactions) for page in pages) <= page_size
        assert max(rig.etcd.read) <= page_size


async def test_a_page_is_never_longer_than_a_step_allows(rig: Rig) -> None:
    for number in range(1, PAGE_MAX + 20):
        rig.log(number)
    pages = await rig.all(10 * PAGE_MAX)
    assert [len(page.transactions) for page in pages] == [PAGE_MAX, 19]
    assert max(rig.etcd.read) <= PAGE_MAX


async def test_of_hazards_without_an_outcome_nothing_is_said_to_have_been_decided(rig: Rig) -> None:
    rig.keep(1)
    entry = OutcomeEntry(Verdict.ABORT, ((NAMES[0], "committed"),), XaStatus.HEURMIX, is_known=False)
    rig.etcd.put(KEYS.heuristic(name(2)), entry.encode())
    (page,) = await rig.all()
    states = [one.state for one in page.heuristics]
    assert states == [pb.DISTRIBUTED_STATE_COMMITTED, pb.DISTRIBUTED_STATE_NOT_KNOWN]


async def test_whether_an_owner_lives_is_said(rig: Rig) -> None:
    rig.log(1)
    rig.log(2, owner=Incarnation("gone"))
    (page,) = await rig.all()
    assert [one.is_owner_alive for one in page.transactions] == [True, False]


async def test_what_somebody_else_wrote_takes_nothing_else_along(rig: Rig) -> None:
    rig.log(1)
    rig.etcd.put(KEYS.participants(name(2)), b"no entry")
    rig.etcd.put(KEYS.heuristic(name(3)), b"none either")
    for number in (4, 5, 6):
        rig.log(number)
    pages = await rig.all(2)
    listed = [one.transaction_id for page in pages for one in page.transactions]
    assert numbers(listed) == [1, 4, 5, 6]


async def test_without_etcd_it_is_unavailable(rig: Rig) -> None:
    rig.etcd.is_away = True
    with pytest.raises(Rejected) as caught:
        await rig.all()
    assert caught.value.code is ErrorCode.UNAVAILABLE
