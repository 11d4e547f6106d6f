"""What operators do to a cluster: stopping brokers one after the other, and accepting a loss when nothing else is left."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from tests.chaos.workload import Workload
from tests.integration.cluster import Deployment, deployed

pytestmark = pytest.mark.slow

LONG_LEASE_SECONDS, SOON_SECONDS = 30, 15
"""A busy machine stops a process in less than half of the lease that would have to end."""
NUMBERED = [b"%d" % number for number in range(100)]


async def test_brokers_stopped_one_after_the_other_hand_their_sets_over(tmp_path: Path) -> None:
    lease = ("--lease-seconds", f"{LONG_LEASE_SECONDS}")
    async with deployed(tmp_path, broker_arguments=lease) as deployment, deployment.client() as client:
        workload = Workload(client, "east")
        async with workload.running():
            for name, local in deployment.cluster.brokers.items():
                await workload.committed_since(10)
                begun = time.monotonic()
                await local.broker.stop(grace_seconds=60)
                assert local.broker.status == 0
                assert time.monotonic() - begun < SOON_SECONDS, f"{name} took long to stop"
                await workload.committed_since(10)
                await deployment.cluster.start_broker(name)
                await deployment.until_in_sync(3)
        await workload.check()
        print(workload.report)
        assert workload.report.longest_gap_seconds < SOON_SECONDS, "a hand-over needs no lease to end"


async def test_one_disk_of_three_brings_everything_back(tmp_path: Path) -> None:
    """R4, R9: two of three members are gone with their disks; the third one leads, completes nothing, and takes new ones."""
    async with deployed(tmp_path) as deployment:
        async with deployment.client() as client, client.session() as session:
            await session.declare_queue("kept", set_name="east")
            await session.publish("kept", NUMBERED)
        await lose(deployment, "B1")
        await lose(deployment, "B2")
        await deployment.until(
            "B3 leads every set",
            lambda status: all(one.primary == "B3" and one.is_led for one in status.view.sets),
        )
        async with deployment.client() as client, client.session() as session:
            with pytest.raises(Rejected) as caught:
                await client.administration.accept_data_loss("east", "B3")
            assert caught.value.code is ErrorCode.IN_USE
            late = await session.publish_soon("kept", b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(late), 2)
            for name in ("B1", "B2"):
                await deployment.cluster.start_store(name)
                await deployment.cluster.start_broker(name)
            await deployment.until_in_sync(3)
            await late
            assert [message.body async for message in session.browse("kept")] == [*NUMBERED, b"late"]


async def test_a_disk_that_is_not_in_sync_serves_only_when_the_loss_is_accepted(tmp_path: Path) -> None:
    """R7: the only member in sync is gone with its disk; what it alone had is lost, and nothing else."""
    async with deployed(tmp_path, sets={"pair": ["B1", "B2"]}, brokers=2) as deployment:
        async with deployment.client() as client, client.session() as session:
            await session.declare_queue("kept", set_name="pair")
            await session.publish("kept", NUMBERED)
            await deployment["B2"].broker.kill()
            await deployment.until_in_sync(1)
            await session.publish("kept", b"only on B1")
        await lose(deployment, "B1")
        await deployment.cluster.start_broker("B2")
        await asyncio.sleep(5)
        async with deployment.client() as client:
            status = await client.administration.status()
            assert [one.is_led for one in status.view.sets] == [False], "a disk that missed something leads"
            answer = await client.administration.accept_data_loss("pair", "B2")
            assert answer.generation != status.view.generation
            assert await deployment.primary_of("pair") == "B2"
            async with client.session() as session:
                assert [message.body async for message in session.browse("kept")] == NUMBERED
        await deployment.cluster.start_store("B1")
        await deployment.cluster.start_broker("B1")
        await deployment.until_in_sync(2)


async def test_a_hole_in_the_last_disk_is_served_around_only_when_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    """R7, R10: the only member in sync is damaged, and the others lost their disks; what lies before the hole is left."""
    async with deployed(tmp_path, sets={"pair": ["B1", "B2"]}, brokers=2) as deployment:
        async with deployment.client() as client, client.session() as session:
            await session.declare_queue("kept", set_name="pair")
            await session.publish("kept", NUMBERED)
            await lose(deployment, "B2")
            await deployment.until_in_sync(1)
            await session.publish("kept", b"the hole")
            await session.publish("kept", b"behind the hole")
        await asyncio.sleep(2.5)
        await deployment["B1"].broker.kill()
        await deployment["B1"].store.kill()
        flip_bit(deployment.cluster.directory / "B1" / "store", b"the hole")
        for name in ("B1", "B2"):
            await deployment.cluster.start_store(name)
            await deployment.cluster.start_broker(name)
        await asyncio.sleep(8)
        async with deployment.client() as client:
            status = await client.administration.status()
            assert [one.is_led for one in status.view.sets] == [False], (
                "a damaged disk leads, or an empty one"
            )
            answer = await client.administration.accept_data_loss("pair", "B1")
            assert answer.generation != status.view.generation
            async with client.session() as session:
                assert [message.body async for message in session.browse("kept")] == NUMBERED
                await session.publish("kept", b"after it")
        await deployment.until_in_sync(2)
        assert b"accepted" in deployment["B1"].store.log.read_bytes(), "an acceptance is logged"
        for local in deployment.cluster.brokers.values():
            await local.broker.kill()
        for name in ("B1", "B2"):
            await deployment.cluster.start_broker(name)
        await deployment.until_in_sync(2)
        async with deployment.client() as client, client.session() as session:
            assert [message.body async for message in session.browse("kept")] == [*NUMBERED, b"after it"]


def flip_bit(store: Path, body: bytes) -> None:
    """In the journal, inside of the one message with this body."""
    (segment,) = [path for path in store.rglob("*.segment") if body in path.read_bytes()]
    data = bytearray(segment.read_bytes())
    data[data.index(body)] ^= 1
    segment.write_bytes(data)


async def lose(deployment: Deployment, name: str) -> None:
    """A broker and its disk are gone."""
    await deployment[name].broker.kill()
    await deployment[name].store.kill()
    shutil.rmtree(deployment.cluster.directory / name / "store")
