"""Transactions over three resource sets with three primaries, by coordinator processes: all or nothing, whoever dies."""

import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest
import pytest_asyncio

from lockstep.client.client import Client, connect
from lockstep.client.resource_manager import Branch, ResourceManager
from lockstep.client.session import Session
from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.cluster_map import Keys
from lockstep.core.errors import LockstepError
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.etcd import EtcdClient
from services.coordinator.core.steps import Step
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.coordination import COMMITTED, ROLLED_BACK, ClientTransaction, CoordinatorClient, until
from tests.integration.coordinator_processes import Coordinators

pytestmark = pytest.mark.asyncio(loop_scope="module")
PARTICIPANTS = [f"set:{name}" for name in SETS]
KILLED_AT = [
    step.value
    for step in Step
    if step not in (Step.CLOSE_ASKED, Step.CLOSE_WRITTEN, Step.ONE_PHASE_COMPLETED)
]


class Work:
    """A client's session, its queue in each set, and one transaction after the other that publishes to all of them."""

    def __init__(self, client: Client, session: Session) -> None:
        self.client = client
        self._session = session
        self.managers: dict[str, ResourceManager] = {}
        self._bodies = 0

    async def open(self) -> None:
        for name in SETS:
            await self._session.declare_queue(f"{name}.in", set_name=name)
            self.managers[name] = await self._session.resource_manager(name)
            await self.managers[name].select()

    async def begin(
        self, coordinator: CoordinatorClient, participants: Sequence[str] = PARTICIPANTS
    ) -> "Doing":
        """A transaction with a branch in each set, all ended."""
        self._bodies += 1
        doing = Doing(await ClientTransaction.begin(coordinator, participants), b"message %d" % self._bodies)
        for name, xid in zip(self.managers, doing.transaction.xids, strict=False):
            branch = await self.managers[name].start(xid)
            await branch.publish(f"{name}.in", [doing.body])
            assert await self.managers[name].end(xid) is XaStatus.OK
        return doing

    async def seen(self, body: bytes) -> list[bool]:
        """Whether each set's queue has the message."""
        found = []
        for name in SETS:
            bodies = [message.body async for message in self._session.browse(f"{name}.in")]
            found.append(body in bodies)
        return found

    async def prepared(self) -> int:
        """Branches that are prepared, over all sets."""
        return sum([len(await manager.recover()) for manager in self.managers.values()])


class Doing:
    """One transaction under way."""

    def __init__(self, transaction: ClientTransaction, body: bytes) -> None:
        self.transaction = transaction
        self.body = body


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("cluster")) as deployment:
        yield deployment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinators(deployment: Deployment) -> AsyncGenerator[Coordinators]:
    coordinators = Coordinators(deployment)
    yield coordinators
    await coordinators.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(coordinators: Coordinators) -> CoordinatorClient:
    """The one that nobody kills."""
    return await coordinators.start()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def work(deployment: Deployment) -> AsyncGenerator[Work]:
    async with _working(deployment) as work:
        yield work


@contextlib.asynccontextmanager
async def _working(deployment: Deployment) -> AsyncIterator[Work]:
    async with await connect(deployment.addresses) as client:
        work = Work(client, client.session())
        await work.open()
        yield work


async def test_three_sets_commit_as_one(work: Work, coordinator: CoordinatorClient) -> None:
    doing = await work.begin(coordinator)
    assert await work.seen(doing.body) == [False] * 3
    committed = await doing.transaction.commit(coordinator)
    assert (committed.state, list(committed.hazards), list(committed.pending)) == (COMMITTED, [], [])
    assert await work.seen(doing.body) == [True] * 3
    assert await work.prepared() == 0


async def test_three_sets_roll_back_as_one(work: Work, coordinator: CoordinatorClient) -> None:
    doing = await work.begin(coordinator)
    rolled_back = await doing.transaction.rollback(coordinator)
    assert rolled_back.state == ROLLED_BACK
    assert await work.seen(doing.body) == [False] * 3


async def test_a_branch_that_can_only_be_rolled_back_decides_for_all(
    work: Work, coordinator: CoordinatorClient
) -> None:
    doing = await work.begin(coordinator)
    xid = doing.transaction.xids[1]
    west = work.managers["west"]
    await west.start(xid, join=True)
    assert await west.end(xid, fail=True) is XaStatus.RBROLLBACK
    assert (await doing.transaction.commit(coordinator)).state == ROLLED_BACK
    assert await work.seen(doing.body) == [False] * 3
    assert await work.prepared() == 0


async def test_one_set_commits_in_one_phase(work: Work, coordinator: CoordinatorClient) -> None:
    transaction = await ClientTransaction.begin(coordinator, PARTICIPANTS[:1])
    branch: Branch = await work.managers["east"].start(transaction.xids[0])
    await branch.publish("east.in", [b"alone"])
    await work.managers["east"].end(transaction.xids[0])
    assert (await transaction.commit(coordinator)).state == COMMITTED
    assert (await work.seen(b"alone"))[0]


@pytest.mark.parametrize("step", KILLED_AT)
async def test_a_coordinator_killed_at_any_step_leaves_all_or_nothing(
    step: str, work: Work, coordinator: CoordinatorClient, coordinators: Coordinators
) -> None:
    doomed = await coordinators.start(exit_at=step)
    doing = await work.begin(doomed)
    with contextlib.suppress(LockstepError):  # At the last step the client has been answered.
        await doing.transaction.commit(doomed)
    assert (await coordinators.end_of(doomed)) == -signal.SIGKILL, "the step was reached"
    again = await doing.transaction.commit(coordinator)
    assert again.state in (COMMITTED, ROLLED_BACK)
    seen = await until("all sets agree", lambda: work.seen(doing.body), lambda found: len(set(found)) == 1)
    assert seen == [again.state == COMMITTED] * 3
    await until("nothing is prepared", work.prepared, lambda number: number == 0)


async def test_a_primary_killed_before_the_commit_holds_nothing_up(
    deployment: Deployment, work: Work, coordinator: CoordinatorClient
) -> None:
    doing = await work.begin(coordinator)
    for name, xid in zip(work.managers, doing.transaction.xids, strict=True):
        assert await work.managers[name].prepare(xid) is XaStatus.OK
    primary = await deployment.primary_of("west")
    await deployment[primary].broker.kill()
    assert (await doing.transaction.commit(coordinator)).state == COMMITTED
    await until("all sets have it", lambda: work.seen(doing.body), lambda found: found == [True] * 3)
    await deployment.cluster.start_broker(primary)
    await deployment.until_in_sync()


async def test_a_prepared_branch_that_nobody_coordinates_ends_by_itself(
    deployment: Deployment, work: Work
) -> None:
    xid = await _orphan_xid(deployment)
    east = work.managers["east"]
    branch = await east.start(xid)
    await branch.publish("east.in", [b"orphan"])
    await east.end(xid)
    assert await east.prepare(xid) is XaStatus.OK
    await until("it is rolled back", east.recover, lambda branches: not branches)
    assert not (await work.seen(b"orphan"))[0]


async def _orphan_xid(deployment: Deployment) -> Xid:
    assert deployment.cluster.etcd is not None
    async with EtcdClient(deployment.cluster.etcd.endpoint) as etcd:
        entry = await etcd.get(Keys("local").generation)
    assert entry is not None
    return branch_xid(GlobalId(b"o" * GLOBAL_ID_BYTES), 0, generation_tag(entry.value.decode()))
