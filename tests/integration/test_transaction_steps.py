"""A queue in a resource set and PostgreSQL in one transaction, whose coordinator is killed at each named step of the protocol.

The kill points are `STEPS`: a step that is added to the protocol is a case here by itself.
"""

import contextlib
import signal
import sys
from collections.abc import AsyncGenerator
from itertools import count

import psycopg
import pytest
import pytest_asyncio

from lockstep.client.client import connect
from lockstep.client.session import Session
from lockstep.core.errors import InDoubt
from lockstep.core.postgres_gid import gid_of
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from services.coordinator.core.steps import STEPS, Step
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.coordination import COMMITTED, ROLLED_BACK, ClientTransaction, CoordinatorClient, until
from tests.integration.coordinator_processes import Coordinators
from tests.integration.postgres_process import PostgresProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")
UNDECIDED = (Step.CLOSE_ASKED, Step.CLOSE_WRITTEN)
"""Here the client may go on elsewhere, and nobody has decided in its place."""
DECIDED = (Step.DECISION_WRITTEN, Step.BRANCH_COMPLETED, Step.ALL_COMPLETED, Step.LOG_DELETED)
"""From here on it is committed, whoever dies."""
_rows = count(1)


class Both:
    """A queue and a table, and transactions that put a number into both."""

    def __init__(self, session: Session, dsn: str, database: str) -> None:
        self.session = session
        self.participants = ["set:east", database]
        self._dsn = dsn

    async def connect(self) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        return await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)

    async def publish(self, number: int, xid: Xid) -> None:
        manager = await self.session.resource_manager("east")
        await manager.select()
        branch = await manager.start(xid)
        await branch.publish("east.steps", [b"%d" % number])
        assert await manager.end(xid) is XaStatus.OK

    async def insert(self, number: int, xid: Xid) -> None:
        """As a client does behind `close`: the row is prepared in the database."""
        async with await self.connect() as connection:
            await connection.execute("begin")
            await connection.execute("insert into steps values (%s)", (number,))
            await connection.execute(f"prepare transaction '{gid_of(xid)}'".encode())

    async def seen(self, number: int) -> tuple[bool, bool]:
        """Whether the queue and the table have it."""
        bodies = [message.body async for message in self.session.browse("east.steps")]
        async with await self.connect() as connection:
            rows = await (
                await connection.execute("select id from steps where id = %s", (number,))
            ).fetchall()
        return b"%d" % number in bodies, bool(rows)

    async def prepared(self) -> list[str]:
        manager = await self.session.resource_manager("east")
        async with await self.connect() as connection:
            gids = await (await connection.execute("select gid from pg_prepared_xacts")).fetchall()
        return [*map(str, await manager.recover()), *(str(gid) for (gid,) in gids)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("cluster"), sets={"east": SETS["east"]}) as deployment:
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
async def both(deployment: Deployment, postgres: PostgresProcess) -> AsyncGenerator[Both]:
    assert deployment.cluster.etcd is not None
    (port,) = choose_ports(1)
    command = (
        *(sys.executable, "-m", "services.postgres_participant", "--name", "steps", "--dsn", postgres.dsn),
        *("--listen", f"127.0.0.1:{port}", "--etcd", deployment.cluster.etcd.endpoint, "--cluster", "local"),
    )
    child = ChildProcess("postgres participant", command, deployment.cluster.directory / "participant.log")
    await child.start()
    try:
        await wait_for_port(child, f"127.0.0.1:{port}")
        async with await connect(deployment.addresses) as client, client.session() as session:
            both = Both(session, postgres.dsn, f"grpc://127.0.0.1:{port}/steps")
            await session.declare_queue("east.steps", set_name="east")
            async with await both.connect() as connection:
                await connection.execute("create table steps (id int primary key)")
            yield both
    finally:
        await child.kill()


@pytest.mark.parametrize("step", [step for step in STEPS if step != Step.ONE_PHASE_COMPLETED.value])
async def test_a_queue_and_a_table_agree_when_a_coordinator_is_killed_at(
    step: str, both: Both, coordinator: CoordinatorClient, coordinators: Coordinators
) -> None:
    number = next(_rows)
    doomed = await coordinators.start(exit_at=step)
    transaction = await ClientTransaction.begin(doomed, both.participants)
    await both.publish(number, transaction.xids[0])
    try:
        await transaction.close(doomed)
    except InDoubt:
        # Any coordinator fixes the list, or finds it fixed.
        await transaction.close(coordinator)
    await both.insert(number, transaction.xids[1])
    assert await both.seen(number) == (False, False)
    with contextlib.suppress(InDoubt):  # At the last step the client has been answered.
        await transaction.commit(doomed)
    assert await coordinators.end_of(doomed) == -signal.SIGKILL, "the step was reached"
    again = await transaction.commit(coordinator)
    assert again.state in (COMMITTED, ROLLED_BACK)
    assert list(again.hazards) == []
    if Step(step) in (*UNDECIDED, *DECIDED):
        assert again.state == COMMITTED
    expected = (again.state == COMMITTED,) * 2
    await until("nothing is prepared", both.prepared, lambda branches: not branches)
    assert await both.seen(number) == expected
    assert await coordinator.outcome(transaction, fence=True) == again.state


@pytest.mark.parametrize("place", [0, 1], ids=["queue", "table"])
async def test_a_single_participant_tells_what_its_killed_coordinator_did(
    place: int, both: Both, coordinator: CoordinatorClient, coordinators: Coordinators
) -> None:
    number = next(_rows)
    doomed = await coordinators.start(exit_at=Step.ONE_PHASE_COMPLETED.value)
    transaction = await ClientTransaction.begin(doomed, [both.participants[place]])
    await (both.insert if place else both.publish)(number, transaction.xids[0])
    with pytest.raises(InDoubt):
        await transaction.commit(doomed)
    assert await coordinators.end_of(doomed) == -signal.SIGKILL, "the step was reached"
    assert (await transaction.commit(coordinator)).state == COMMITTED
    assert await both.seen(number) == (not place, bool(place))
    assert await both.prepared() == []
