"""etcd is restored from a snapshot that its own tool took behind a transaction's back: it was decided since, and one of its two
sets has committed.

Nobody presumes that the other one is to be rolled back, operators are told, and their way out loses nothing (DESIGN R1, T3,
history 26).
"""

import asyncio
import json
import secrets
import shutil
import time
from pathlib import Path

import pytest

from lockstep.client.client import Client
from lockstep.client.resource_manager import ResourceManager
from lockstep.client.session import Session
from lockstep.core.branch_names import (
    RANDOM_BYTES,
    GenerationTag,
    GlobalId,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from lockstep.core.stamps import Stamp, Stamps
from lockstep.core.xa import XaStatus
from lockstep.runtime.etcd import EtcdClient, Put
from lockstep.runtime.etcd_process import EtcdProcess, find_etcd
from lockstep.runtime.local_cluster import LocalCluster
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.operators import lockstep, read

CLUSTER = "local"
KEYS, LOG = Keys(CLUSTER), DecisionKeys(CLUSTER)
TWO = {name: SETS[name] for name in ("east", "west")}
WITHIN_SECONDS = 30.0
PASSING = 500
"""Writes of others to the restored etcd before any broker comes: its revision passes all that anybody has seen."""
PRESUMED_SECONDS = 12.0
"""Within which a prepared branch would have asked twice, and a coordinator have looked for what is left undecided."""


async def etcdctl(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(str(find_etcd().with_name("etcdctl")), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), WITHIN_SECONDS)
    assert process.returncode == 0, out.decode()


async def until_stamped(etcd: EtcdClient, after: Stamp | None) -> Stamp:
    """Waits until all brokers are witnesses, and another stamp is the newest; answers that."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        entry = await etcd.get(KEYS.stamps)
        found = Stamps.decode(entry.value if entry is not None else b"")
        if (
            found.newest is not None
            and found.newest != after
            and len(found.witnesses) == 3
            and not found.silent
        ):
            return found.newest
        assert time.monotonic() < deadline, f"no stamp by three witnesses: {found}"
        await asyncio.sleep(0.2)
        # One is put where etcd has gone on.
        await etcd.transact([], [Put("/elsewhere", b"")])


class InBoth:
    """A transaction over two sets, by hand, in the place of a coordinator that is gone."""

    def __init__(self, etcd: EtcdClient, session: Session, tag: GenerationTag) -> None:
        self._etcd = etcd
        self._session = session
        self._tag = tag
        begun_ms = time.time_ns() // 1_000_000
        self.global_id = GlobalId(new_global_id(begun_ms, secrets.token_bytes(RANDOM_BYTES)))
        self.xids = {name: branch_xid(self.global_id, number, tag) for number, name in enumerate(TWO)}
        self._managers: dict[str, ResourceManager] = {}

    async def work(self) -> None:
        for name, xid in self.xids.items():
            await self._session.declare_queue(f"{name}-in", set_name=name)
            manager = self._managers[name] = await self._session.resource_manager(name)
            await manager.select()
            branch = await manager.start(xid)
            await branch.publish(f"{name}-in", [b"of both"])
            assert await manager.end(xid) is XaStatus.OK

    async def prepare(self) -> None:
        for name, xid in self.xids.items():
            assert await self._managers[name].prepare(xid) is XaStatus.OK

    async def commit(self, set_name: str) -> None:
        assert await self._managers[set_name].commit(self.xids[set_name]) is XaStatus.OK

    async def write_list(self) -> None:
        names = tuple(ParticipantName(f"set:{name}") for name in TWO)
        entry = ParticipantsEntry(names, self._tag, Incarnation("gone"), time.time_ns() // 1_000_000)
        await self._etcd.transact([], [Put(LOG.participants(self.global_id), entry.encode())])

    async def decide(self) -> None:
        await self._etcd.transact([], [Put(LOG.decision(self.global_id), Verdict.COMMIT.encode())])


async def bodies(client: Client, name: str) -> list[bytes]:
    async with client.session() as session:
        return [message.body async for message in session.browse(f"{name}-in")]


async def kill(cluster: LocalCluster) -> None:
    for local in cluster.brokers.values():
        await local.broker.kill()
    for local in cluster.brokers.values():
        await local.store.kill()
    assert cluster.etcd is not None
    cluster.etcd.kill()


async def restore(directory: Path, snapshot: Path, passing: int = PASSING) -> None:
    """As etcd's own tool does it; then others write to it, for themselves, `passing` times."""
    member = json.loads((directory / "member.json").read_text())
    peer = f"http://127.0.0.1:{member['peer_port']}"
    data = directory / "member-data"
    shutil.rmtree(data)
    await etcdctl(
        *("snapshot", "restore", str(snapshot), f"--data-dir={data}", "--name=development"),
        *(f"--initial-cluster=development={peer}", f"--initial-advertise-peer-urls={peer}"),
    )
    process = await EtcdProcess.start(directory)
    async with EtcdClient(process.endpoint) as etcd:
        for _ in range(passing):
            await etcd.transact([], [Put("/elsewhere", b"")])
    await process.stop()


@pytest.mark.parametrize("is_listed", [False, True])
async def test_no_abort_is_presumed_in_a_restored_etcd_and_operators_find_the_way_out(
    is_listed: bool, tmp_path: Path
) -> None:
    """`is_listed`: the snapshot has the list of participants, undecided; without, nothing of the transaction."""
    snapshot = tmp_path / "snapshot"
    async with deployed(tmp_path / "cluster", sets=TWO) as before:
        assert before.cluster.etcd is not None
        async with (
            EtcdClient(before.cluster.etcd.endpoint) as etcd,
            before.client() as client,
            client.session() as session,
        ):
            generation = await etcd.get(KEYS.generation)
            assert generation is not None
            both = InBoth(etcd, session, generation_tag(generation.value.decode()))
            await both.work()
            stamp = await until_stamped(etcd, None)
            if is_listed:
                await both.write_list()
            await etcdctl("snapshot", "save", str(snapshot), f"--endpoints={before.cluster.etcd.endpoint}")
            # Until the next one is put every disk has the time to remember the first that the snapshot lacks.
            await until_stamped(etcd, await until_stamped(etcd, stamp))
            if not is_listed:
                await both.write_list()
            await both.prepare()
            await both.decide()
            await both.commit("east")
            assert await bodies(client, "east") == [b"of both"]
            await kill(before.cluster)
    await restore(tmp_path / "cluster" / "etcd", snapshot)

    async with LocalCluster(tmp_path / "cluster", coordinators=1, first_port=0) as cluster:
        deployment = Deployment(cluster)
        await deployment.until(
            "all replicas say that etcd was set back",
            lambda status: all(
                answer is not None
                and len(answer.replicas) == len(TWO)
                and all("rebuild-map" in replica.trouble for replica in answer.replicas)
                for answer in status.brokers.values()
            ),
        )
        await asyncio.sleep(PRESUMED_SECONDS)
        assert not any(one.is_led for one in (await deployment.status()).view.sets)
        words = "".join(local.broker.last_words(100_000) for local in cluster.brokers.values())
        assert "event=etcd_set_back" in words

        status, _, err = await lockstep(deployment, "cluster", "rebuild-map", "--rebuild")
        assert status == 0, err
        await deployment.until_in_sync()
        await asyncio.sleep(PRESUMED_SECONDS)
        async with deployment.client() as client:
            assert (await bodies(client, "east"), await bodies(client, "west")) == ([b"of both"], [])
            assert "west" in json.dumps(await read(deployment, "tx", "list"))
            xid = str(both.xids["west"])
            status, _, err = await lockstep(deployment, "tx", "commit", xid, "--heuristic")
            assert status == 0, err
            assert (await bodies(client, "east"), await bodies(client, "west")) == (
                [b"of both"],
                [b"of both"],
            )


@pytest.mark.parametrize("is_rebuilt", [True, False])
async def test_brokers_that_live_through_a_restore_go_on_by_an_operators_word_and_are_not_restarted(
    is_rebuilt: bool, tmp_path: Path
) -> None:
    """They have seen revisions that this etcd does not come to. `is_rebuilt`: all are there, and the map is rebuilt; or two
    machines are lost, and the loss is accepted of what only they had.
    """
    snapshot = tmp_path / "snapshot"
    async with deployed(tmp_path / "cluster", sets={"east": SETS["east"]}) as deployment:
        cluster = deployment.cluster
        assert cluster.etcd is not None
        async with EtcdClient(cluster.etcd.endpoint) as etcd, deployment.client() as client:
            async with client.session() as session:
                await session.declare_queue("east-in", set_name="east")
                await session.publish("east-in", [b"1"])
            stamp = await until_stamped(etcd, None)
            await etcdctl("snapshot", "save", str(snapshot), f"--endpoints={cluster.etcd.endpoint}")
            await client.administration.promote("east", "B2")
            for _ in range(PASSING):
                await etcd.transact([], [Put("/elsewhere", b"")])
            await until_stamped(etcd, await until_stamped(etcd, stamp))
            await deployment.until_in_sync()
        cluster.etcd.kill()
        for name in () if is_rebuilt else ("B1", "B2"):
            await cluster.brokers[name].broker.kill()
            await cluster.brokers[name].store.kill()
            shutil.rmtree(cluster.directory / name / "store")
        await restore(tmp_path / "cluster" / "etcd", snapshot, passing=0)
        await cluster.start_etcd()

        await deployment.until(
            "who lives says that etcd was set back, and nobody leads",
            lambda status: (
                all(
                    "rebuild-map" in replica.trouble
                    for answer in status.brokers.values()
                    if answer is not None
                    for replica in answer.replicas
                )
                and not any(one.is_led for one in status.view.sets)
            ),
        )
        words = (
            ("cluster", "rebuild-map", "--rebuild")
            if is_rebuilt
            else ("cluster", "recover", "east", "B3", "--accept-data-loss")
        )
        status, _, err = await lockstep(deployment, *words)
        assert status == 0, err
        if not is_rebuilt:
            await cluster.start_store("B1")
            await cluster.start_broker("B1")
        await deployment.until_in_sync(3 if is_rebuilt else 2)
        async with deployment.client() as client:
            assert await bodies(client, "east") == [b"1"]
