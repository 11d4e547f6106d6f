"""Power losses of one, two and all machines under load, and disks that are slow, full or failing: acknowledged effects stay.

Processes alone cannot show this: what a killed store had written is still in the page cache. One cluster serves all of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import pytest_asyncio

from lockstep.client.session import Session
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from tests.chaos.audited_workload import IMPATIENT, AuditedWorkload
from tests.chaos.power_loss_cluster import BROKERS, RESERVE_BYTES, PowerLossCluster, deployed
from tests.chaos.shared_clusters import ROUND_SECONDS, SharedClusters, shared
from tests.integration.cluster import SETS, Deployment
from tests.integration.power_loss_fs import reason_to_skip
from tests.integration.volatile_disk import total

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip()),
]

SET = "east"
Machines = tuple[Deployment, PowerLossCluster]


async def _mend(machines: Machines) -> None:
    deployment, cluster = machines
    for disk in cluster.disks.values():
        await disk.command("heal")
    await deployment.until_in_sync(3, ROUND_SECONDS)


clusters, machines = shared(deployed, _mend)


@pytest_asyncio.fixture(loop_scope="module")
async def lost_machines(clusters: SharedClusters[Machines]) -> AsyncGenerator[Machines]:
    """No test has them behind this one: what they have lost would be missing."""
    yield await clusters.present()
    await clusters.end()


async def under_load(
    machines: Machines, name: str, harm: Callable[[AuditedWorkload], Awaitable[None]]
) -> AuditedWorkload:
    """Runs the workload around `harm`; then everything is in sync, in equal states, and accounted for."""
    deployment, cluster = machines
    async with deployment.client() as client:
        workload = AuditedWorkload(
            client, deployment.addresses, SET, name=name, senders=4, movers=2, patience=IMPATIENT
        )
        async with workload.running():
            await workload.committed_since(20)
            await harm(workload)
            await workload.committed_since(10)
            await deployment.until_in_sync(3)
        await workload.check()
    for set_name in SETS:
        hashes = await deployment.state_hashes(set_name)
        assert len(hashes) == 3, hashes
        assert len(set(hashes.values())) == 1, hashes
    loss, cluster.losses = total(cluster.losses), []
    print(
        f"{name}: {workload.summary()}; the disks lost {loss.bytes_lost} unsynced bytes and kept {loss.bytes_kept}, "
        f"tore {loss.files_torn} files, lost {loss.names_lost} names and kept {loss.names_kept}"
    )
    return workload


async def others_first(deployment: Deployment) -> list[str]:
    """The backups of the set, then its primary."""
    primary = await deployment.primary_of(SET)
    return [*(name for name in BROKERS if name != primary), primary]


@pytest.mark.parametrize("seeds", [(1, 2, 3, 4, 5, 6)])
async def test_power_loss_of_all_machines_at_the_same_moment(
    machines: Machines, seeds: tuple[int, ...]
) -> None:
    _, cluster = machines

    async def harm(workload: AuditedWorkload) -> None:
        await cluster.use_spinning_disks()
        for seed in seeds:
            await workload.committed_since(15 + seed)
            await workload.note_kill()
            await cluster.lose_power(BROKERS, seed)
            await cluster.give_power(BROKERS)

    workload = await under_load(machines, "all", harm)
    assert workload.report.killed_in_flight >= len(seeds)


async def test_power_loss_of_one_machine_and_of_two(machines: Machines) -> None:
    """Of the primary's, of a backup's, of both, and of both backups'; the map remembers who was in sync (R9)."""
    deployment, cluster = machines

    async def harm(workload: AuditedWorkload) -> None:
        await cluster.use_spinning_disks()
        for seed, places in enumerate(((2,), (0,), (0, 2), (0, 1)), start=11):
            names = await others_first(deployment)
            lost = [names[place] for place in places]
            await workload.committed_since(15)
            await workload.note_kill()
            await cluster.lose_power(lost, seed)
            if len(lost) == 1:
                await workload.committed_since(10)
            await cluster.give_power(lost)
            await deployment.until_in_sync(3)

    workload = await under_load(machines, "some", harm)
    assert workload.report.killed_in_flight >= 4


async def test_slow_hanging_and_failing_disks(machines: Machines) -> None:
    """One cluster, one trouble after the other: nothing is lost, and each ends when its cause does."""
    deployment, cluster = machines

    async def slow_backup(workload: AuditedWorkload) -> None:
        names = await others_first(deployment)
        await workload.note_kill()
        await cluster.disks[names[0]].command("slow", write=0.0, sync=0.1)
        await workload.committed_since(20)
        await cluster.disks[names[0]].command("heal")

    async def failing(workload: AuditedWorkload) -> None:
        names = await others_first(deployment)
        for name, what in ((names[0], "sync"), (names[-1], "sync"), (names[1], "write")):
            await workload.note_kill()
            await cluster.disks[name].command("fail", what=what, count=2, match=".segment")
            await workload.committed_since(20)
            await cluster.disks[name].command("heal")
            await deployment.until_in_sync(3)

    async def hanging_primary(workload: AuditedWorkload) -> None:
        """It gives its lease up, and another one goes on (R6, history 27)."""
        names = await others_first(deployment)
        await workload.note_kill()
        await cluster.disks[names[-1]].command("slow", write=0.0, sync=6.0)
        await workload.committed_since(20)
        await cluster.disks[names[-1]].command("heal")
        assert await deployment.primary_of(SET) != names[-1]

    await under_load(machines, "slow backup", slow_backup)
    await under_load(machines, "failing", failing)
    await under_load(machines, "hanging disk of the primary", hanging_primary)


BULK_BYTES = 20_000


async def publish_until(
    session: Session, queue: str, is_enough: Callable[[], bool]
) -> tuple[list[bytes], Rejected | None]:
    """Big messages, one after the other: those that were confirmed, and what refused one."""
    kept: list[bytes] = []
    for number in range(1000):
        body = b"%d" % number + bytes(BULK_BYTES)
        try:
            await asyncio.wait_for(session.publish(queue, [body]), 60)
        except Rejected as error:
            return kept, error
        kept.append(body)
        if is_enough():
            break
    return kept, None


async def test_a_full_disk_of_a_backup_costs_it_its_place_until_there_is_room(machines: Machines) -> None:
    deployment, cluster = machines
    names = await others_first(deployment)
    backup = names[0]
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("full-backup", set_name=SET)

        async def harm(workload: AuditedWorkload) -> None:
            is_removed = False

            async def watch() -> None:
                nonlocal is_removed
                await deployment.until(
                    f"{backup} is removed",
                    lambda status: any(
                        one.name == SET and backup not in one.in_sync for one in status.view.sets
                    ),
                )
                is_removed = True

            await workload.note_kill()
            await cluster.disks[backup].limit_free(0)
            watching = asyncio.create_task(watch())
            kept, refused = await publish_until(session, "full-backup", lambda: is_removed)
            await watching
            assert refused is None, "a full backup is not the publishers' trouble"
            await workload.committed_since(10)
            await cluster.disks[backup].limit_free(None)
            await deployment.until_in_sync(3)
            assert [message.body async for message in session.browse("full-backup")] == kept

        await under_load(machines, "full backup", harm)


async def test_a_full_disk_of_the_primary_is_a_typed_error_and_ends_with_it(machines: Machines) -> None:
    deployment, cluster = machines
    primary = await deployment.primary_of(SET)
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("full-primary", set_name=SET)

        async def harm(workload: AuditedWorkload) -> None:
            await workload.note_kill()
            await cluster.disks[primary].limit_free(RESERVE_BYTES + (64 << 20) + (1 << 20))
            kept, refused = await publish_until(session, "full-primary", lambda: False)
            assert refused is not None, "the disk never became full"
            assert refused.code is ErrorCode.STORE_FULL, refused
            assert await deployment.primary_of(SET) == primary
            errors = workload.report.errors
            async with asyncio.timeout(60):
                # The store may have made room again, by consolidating, before the workload came upon a full disk.
                while not (errors["STORE_FULL"] or errors["ROLLED_BACK"]):
                    more, _ = await publish_until(session, "full-primary", lambda: False)
                    kept += more
                    await asyncio.sleep(0.1)
            await cluster.disks[primary].limit_free(None)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await session.publish("full-primary", [b"room again"])
                        break
                    except Rejected:
                        await asyncio.sleep(0.1)
            assert [message.body async for message in session.browse("full-primary")] == [
                *kept,
                b"room again",
            ]
            print(f"full behind {len(kept)} messages: {refused!r}")

        await under_load(machines, "full primary", harm)


async def test_disks_that_lie_about_their_syncs_are_found_out_by_these_checks(
    lost_machines: Machines,
) -> None:
    """The control: without syncs a power loss of all machines loses what was acknowledged, and the checks must say so."""
    deployment, cluster = lost_machines
    async with deployment.client() as client:
        workload = AuditedWorkload(
            client, deployment.addresses, SET, name="lies", senders=4, movers=2, patience=IMPATIENT
        )

        async def suffer() -> None:
            async with workload.running():
                await workload.committed_since(20)
                for name in BROKERS:
                    await cluster.disks[name].command("lie")
                await workload.committed_since(30)
                await cluster.lose_power(BROKERS, 3)
                await cluster.give_power(BROKERS)
                await workload.committed_since(10, seconds=8)
            await workload.check()

        with pytest.raises((AssertionError, TimeoutError, LockstepError)) as found:
            # Behind a loss a client may wait for ever, and load may go on meanwhile.
            async with asyncio.timeout(180):
                await suffer()
    print(f"found: {str(found.value)[:300]}")
