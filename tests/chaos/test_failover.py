"""Kills and stalls of each role under load: nothing acknowledged is lost, torn or there twice, and work goes on.

What clients heard and were shown meanwhile is judged by the simulator's checkers and the log that the stores have. One cluster
serves all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.chaos.audited_workload import IMPATIENT, AuditedWorkload
from tests.chaos.committed_logs import check_clients_of
from tests.chaos.shared_clusters import ROUND_SECONDS, shared
from tests.chaos.workload import Report, Workload
from tests.integration.cluster import SETS, Deployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SET = "east"


async def _mend(deployment: Deployment) -> None:
    """Start what a test has left dead."""
    for name, local in deployment.cluster.brokers.items():
        if not local.broker.is_running:
            await deployment.cluster.start_broker(name)
    await deployment.until_in_sync(3, ROUND_SECONDS)


clusters, deployment = shared(deployed, _mend)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of this test's workload."""
    return str(request.node.name).removeprefix("test_")


async def under_load(
    deployment: Deployment, name: str, harm: Callable[[Workload], Awaitable[None]]
) -> Report:
    """Runs the workload around `harm`, checks everything at the end, and prints what happened."""
    async with deployment.client() as client:
        workload = AuditedWorkload(client, deployment.addresses, SET, name=name, patience=IMPATIENT)
        async with workload.running():
            await workload.committed_since(20)
            await harm(workload)
            await workload.committed_since(20)
            await deployment.until_in_sync(3)
        await workload.check()
    model = await check_clients_of(SET, deployment.store_addresses(SET), workload)
    print(f"{workload.summary()}; checked in the log: {model.end} indexes")
    return workload.report


async def test_sigkill_of_the_primary_under_load(deployment: Deployment, name: str) -> None:
    primary = await deployment.primary_of(SET)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        await deployment[primary].broker.kill()
        await workload.committed_since(20)
        await deployment.cluster.start_broker(primary)
        await deployment.until_in_sync(3)

    report = await under_load(deployment, name, harm)
    assert report.killed_in_flight > 0
    for set_name in SETS:
        assert len(set((await deployment.state_hashes(set_name)).values())) == 1


async def test_sigkill_of_a_backup_under_load(deployment: Deployment, name: str) -> None:
    primary = await deployment.primary_of(SET)
    backup = next(name for name in SETS[SET] if name != primary)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        await deployment[backup].broker.kill()
        await workload.committed_since(20)
        await deployment.cluster.start_broker(backup)
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigstop_of_the_primary_under_load(deployment: Deployment, name: str) -> None:
    """The deposed primary wakes after its lease: nobody may hear what it still has in hand (history 10)."""
    primary = await deployment.primary_of(SET)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        deployment[primary].broker.stall()
        await workload.committed_since(20)
        deployment[primary].broker.resume()
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigstop_of_a_backup_under_load(deployment: Deployment, name: str) -> None:
    primary = await deployment.primary_of(SET)
    backup = next(name for name in SETS[SET] if name != primary)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        deployment[backup].broker.stall()
        await workload.committed_since(20)
        deployment[backup].broker.resume()
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigkill_of_the_primarys_store_under_load(deployment: Deployment, name: str) -> None:
    primary = await deployment.primary_of(SET)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        await deployment[primary].store.kill()
        await asyncio.sleep(0.5)
        await deployment.cluster.start_store(primary)
        await workload.committed_since(20)
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigstop_of_the_primarys_store_under_load(deployment: Deployment, name: str) -> None:
    """A primary whose store hangs gives its lease up, and another one goes on (history 27)."""
    primary = await deployment.primary_of(SET)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        deployment[primary].store.stall()
        await workload.committed_since(20)
        deployment[primary].store.resume()
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigkill_of_a_backups_store_under_load(deployment: Deployment, name: str) -> None:
    primary = await deployment.primary_of(SET)
    backup = next(name for name in SETS[SET] if name != primary)

    async def harm(workload: Workload) -> None:
        await workload.note_kill()
        await deployment[backup].store.kill()
        await workload.committed_since(20)
        await deployment.cluster.start_store(backup)
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_sigkill_of_etcd_under_load(deployment: Deployment, name: str) -> None:
    """What every counted member holds may be acknowledged until the lease ends (R4); after it nobody serves."""

    async def harm(workload: Workload) -> None:
        etcd = deployment.cluster.etcd
        assert etcd is not None, "a started cluster has its etcd"
        await workload.note_kill()
        etcd.kill()
        await asyncio.sleep(5)
        deployment.cluster.etcd = await etcd.restart()
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)


async def test_full_restart_by_sigkill_of_everything(deployment: Deployment, name: str) -> None:
    async def harm(workload: Workload) -> None:
        cluster, etcd = deployment.cluster, deployment.cluster.etcd
        assert etcd is not None, "a started cluster has its etcd"
        await workload.note_kill()
        etcd.kill()
        await asyncio.gather(
            *(local.broker.kill() for local in cluster.brokers.values()),
            *(local.store.kill() for local in cluster.brokers.values()),
        )
        cluster.etcd = await etcd.restart()
        await asyncio.gather(*(cluster.start_store(name) for name in cluster.brokers))
        await asyncio.gather(*(cluster.start_broker(name) for name in cluster.brokers))
        await deployment.until_in_sync(3)

    await under_load(deployment, name, harm)
    for set_name in SETS:
        assert len(set((await deployment.state_hashes(set_name)).values())) == 1


async def test_what_was_committed_is_on_a_backup_after_the_primary_was_killed(deployment: Deployment) -> None:
    primary = await deployment.primary_of(SET)
    async with deployment.client() as client, client.session() as session:
        for queue in ("one", "two"):
            await session.declare_queue(queue, set_name=SET)
        async with session.transaction() as transaction:
            await transaction.publish("one", [b"a", b"b"])
            await transaction.publish("two", [b"c"])
    await deployment[primary].broker.kill()
    successor = await deployment.primary_of(SET)
    assert successor != primary
    async with deployment.client() as client, client.session() as session:
        assert [message.body async for message in session.browse("one")] == [b"a", b"b"]
        assert [message.body async for message in session.browse("two")] == [b"c"]
        assert (await client.get_outcome(str(transaction.id))).state.name == "COMMITTED"
