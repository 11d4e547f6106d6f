"""An etcd of three members: whoever leads may be killed or hang, another leads, and a cluster goes on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lockstep.runtime.etcd import EtcdClient, Put
from tests.integration.cluster import deployed
from tests.integration.etcd_members import EtcdMembers, running_members

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def members(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EtcdMembers]:
    """The same for all tests here, which leave them healthy."""
    async with running_members(tmp_path_factory.mktemp("etcd")) as running:
        yield running


async def test_another_leads_when_the_leader_is_killed_and_it_comes_back_with_what_was_written(
    members: EtcdMembers,
) -> None:
    killed = await members.leader()
    await killed.kill()
    assert await members.leader() is not killed
    async with EtcdClient(members.endpoints) as client:
        await client.transact([], [Put("/x", b"1")])
    await killed.start()
    await members.until_healthy()
    (own,) = (word.partition("=")[2] for word in killed.command if word.startswith("--listen-client-urls="))
    async with EtcdClient(own) as client:
        entry = await client.get("/x")
    assert entry is not None
    assert entry.value == b"1"


async def test_another_leads_while_the_leader_hangs_and_nobody_is_healthy_meanwhile(
    members: EtcdMembers,
) -> None:
    stalled = await members.leader()
    stalled.stall()
    assert await members.leader() is not stalled
    with pytest.raises(AssertionError, match="etcd is not healthy"):
        await members.until_healthy(seconds=0.1)
    stalled.resume()
    await members.until_healthy()


async def test_a_cluster_that_was_given_all_members_changes_its_map_without_their_leader(
    members: EtcdMembers, tmp_path: Path
) -> None:
    async with deployed(
        tmp_path, sets={"one": ["B1"]}, brokers=1, etcd_endpoints=members.endpoints
    ) as deployment:
        assert deployment.cluster.etcd is None, "it has none of its own"
        killed = await members.leader()
        await killed.kill()
        assert await members.leader() is not killed
        async with deployment.client() as client:
            await client.administration.create_set("two", ["B1"])
        await deployment.until_in_sync(1)
    await killed.start()
    await members.until_healthy()
