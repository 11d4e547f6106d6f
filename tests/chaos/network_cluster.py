"""A cluster whose etcd and brokers are machines of their own (`machines.py`), and what is done to its network.

Runs as a process on the clients' machine, so that everything that it starts a client for is one there:

    python -m tests.chaos.network_cluster PREFIX DIRECTORY

One name of a scenario per line on its input, one JSON object back on its output. It ends, with its cluster, when its input does.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.client.administration import ClusterStatus
from lockstep.runtime.etcd_process import find_etcd
from lockstep.runtime.local_cluster import LocalBroker, LocalCluster
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from services.broker.core.lease_keeper import LeaseSettings
from tests.chaos.audited_workload import IMPATIENT, AuditedWorkload
from tests.chaos.broker_watch import Heard, check_fenced, watching
from tests.chaos.committed_logs import check_clients_of
from tests.chaos.machines import Machines
from tests.integration.cluster import SETS, Deployment

BROKERS = ("B1", "B2", "B3")
MACHINES = ("clients", "etcd", *BROKERS)
SET = "east"
LEASE_SECONDS = 6
"""Twice the default: beside it the slack is small."""
RENEW_SECONDS = LeaseSettings(lease_seconds=LEASE_SECONDS).renew_every_ms / 1000
SLACK_SECONDS = 2.0
"""A machine that is shared: a renewal that was late, an answer that waited for a processor."""


class NetworkCluster(LocalCluster):
    """Each store is beside its broker; brokers and etcd are where all machines reach them."""

    def __init__(self, directory: Path, machines: Machines) -> None:
        super().__init__(directory)
        self._sockets = tempfile.mkdtemp(prefix="lockstep-")  # a socket's path is short
        self.machines = machines
        self._etcd_process = ChildProcess("etcd", self._etcd_command(), directory / "etcd.log")

    def _etcd_command(self) -> tuple[str, ...]:
        host = self.machines.addresses["etcd"]
        client, peer = f"http://{host}:2379", f"http://{host}:2380"
        return self.machines.command(
            "etcd",
            str(find_etcd()),
            "--name=only",
            f"--data-dir={self.directory / 'etcd-data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=only={peer}",
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--log-level=warn",
        )

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        etcd = f"{self.machines.addresses['etcd']}:2379"
        await self._etcd_process.start()
        for name in BROKERS:
            home, address = self.directory / name, f"{self.machines.addresses[name]}:7071"
            self._stores[name] = store = self._process(
                name, "store", "--data", str(home / "store"), "--listen", self.store_address(name)
            )
            broker = self._process(
                name,
                *("broker", "--id", name, "--listen", address, "--store", self.store_address(name)),
                *("--etcd", f"http://{etcd}", "--cluster", "network"),
                *("--lease-seconds", f"{LEASE_SECONDS}"),
            )
            self.brokers[name] = LocalBroker(name, broker, store, address, home / "broker-lease")
            await store.start()
        await wait_for_port(self._etcd_process, etcd)
        await asyncio.gather(*(self.start_broker(name) for name in BROKERS))

    def store_address(self, name: str) -> str:
        """On its broker's machine; the file system is one, so its log can be read from here too."""
        return f"unix:{self._sockets}/{name}"

    def _process(self, machine: str, service: str, *arguments: str) -> ChildProcess:
        command = self.machines.command(machine, sys.executable, "-m", f"services.{service}", *arguments)
        return ChildProcess(f"{service} of {machine}", command, self.directory / machine / f"{service}.log")

    async def stop(self, grace_seconds: float = 1.0) -> None:
        await asyncio.gather(*(local.broker.kill() for local in self.brokers.values()))
        await super().stop(grace_seconds)
        await self._etcd_process.stop(grace_seconds)
        shutil.rmtree(self._sockets, ignore_errors=True)


@dataclass(slots=True)
class Scene:
    """What a scenario has in its hands: everything is in sync, and the load runs."""

    deployment: Deployment
    machines: Machines
    workload: AuditedWorkload
    heard: list[Heard]
    primary: str
    backups: list[str]
    notes: list[str]

    async def epoch(self) -> int:
        status = await self.deployment.until(f"{SET} is known", lambda status: bool(status.view.sets))
        return next(one.epoch for one in status.view.sets if one.name == SET)

    async def until_members(self, what: str, holds: Callable[[list[str]], bool]) -> None:
        """Waits for the in-sync set to be as wanted."""

        def is_so(status: ClusterStatus) -> bool:
            return any(one.name == SET and holds(list(one.in_sync)) for one in status.view.sets)

        await self.deployment.until(what, is_so)

    def answers_of(self, broker: str, since: float) -> list[Heard]:
        return [one for one in self.heard if one.broker == broker and one.at >= since]


async def cut_between_primary_and_backups(scene: Scene) -> None:
    """Two of three may not be removed (R4), and the primary keeps its lease: nothing completes, and nobody is promoted."""
    epoch = await scene.epoch()
    await scene.workload.note_kill()
    scene.machines.cut(scene.primary, scene.backups)
    await asyncio.sleep(1.5)
    since, committed = time.monotonic(), scene.workload.report.committed
    await asyncio.sleep(2.5)
    assert scene.workload.report.committed == committed, "acknowledged without a backup"
    assert not [one for one in scene.heard if one.at > since], "acknowledged without a backup"
    assert await scene.epoch() == epoch, "promoted while the primary has its lease"
    scene.machines.heal()


async def one_way_from_primary(scene: Scene) -> None:
    await _lose_backup(scene, lambda backup: scene.machines.drop(scene.primary, backup))


async def one_way_to_primary(scene: Scene) -> None:
    await _lose_backup(scene, lambda backup: scene.machines.drop(backup, scene.primary))


async def backup_cut_off(scene: Scene) -> None:
    """From everybody: it is removed, and comes back."""
    await _lose_backup(
        scene, lambda backup: scene.machines.cut(backup, [name for name in MACHINES if name != backup])
    )


async def _lose_backup(scene: Scene, harm: Callable[[str], None]) -> None:
    backup, epoch = scene.backups[-1], await scene.epoch()
    await scene.workload.note_kill()
    started = time.monotonic()
    harm(backup)
    await scene.until_members(f"{backup} is removed", lambda members: backup not in members)
    removed = time.monotonic() - started
    await scene.workload.committed_since(20)
    assert await scene.epoch() == epoch, "the primary was there all the time"
    scene.machines.heal()
    scene.notes.append(f"removed after {removed:.1f} s")


async def refused_while_alive(scene: Scene) -> None:
    """History 10a. "Connection refused" proves nothing: nobody is promoted before the lease ends, which it does not by itself."""
    epoch, primary = await scene.epoch(), scene.primary
    await scene.workload.note_kill()
    scene.machines.refuse(primary, ["clients", *scene.backups])
    await asyncio.sleep(LEASE_SECONDS + 1.5)
    status = await scene.deployment.status()
    (one,) = [one for one in status.view.sets if one.name == SET]
    assert (one.epoch, one.primary) == (epoch, primary), "promoted while the primary renews its lease"
    await _lose_lease(scene, lambda: scene.machines.refuse("etcd", [primary]))


async def primary_cut_off_from_etcd(scene: Scene) -> None:
    """What every counted member holds may be acknowledged until the lease ends (R4, R6), and nothing later."""
    primary = scene.primary
    started = time.monotonic()
    await _lose_lease(scene, lambda: scene.machines.cut(primary, ["etcd"]))
    last = max(one.at for one in scene.heard if one.broker == primary) - started
    assert last > 0.5, f"no answers of a primary that had its lease: the last after {last:.2f} s"
    assert last < LEASE_SECONDS + SLACK_SECONDS, f"still answered {last:.2f} s after its last renewal"
    scene.notes.append(f"last answer of the old primary after {last:.2f} s")


async def _lose_lease(scene: Scene, harm: Callable[[], None]) -> None:
    """The lease ends by itself: somebody else is promoted, not before."""
    epoch, primary = await scene.epoch(), scene.primary
    await scene.workload.note_kill()
    started = time.monotonic()
    harm()
    while not any(one.epoch > epoch for one in scene.heard):
        assert time.monotonic() < started + 60, f"nobody was promoted; heard last: {scene.heard[-1:]}"
        await asyncio.sleep(0.02)
    promoted = next(one for one in scene.heard if one.epoch > epoch)
    after = promoted.at - started
    assert promoted.broker != primary
    assert after > LEASE_SECONDS - RENEW_SECONDS - SLACK_SECONDS, f"promoted {after:.2f} s into the lease"
    scene.notes.append(f"{promoted.broker} answered after {after:.2f} s")
    await scene.workload.committed_since(10)
    await asyncio.sleep(0.5)
    assert not scene.answers_of(primary, promoted.at), "the deposed primary goes on answering"
    scene.machines.heal()


SCENARIOS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        cut_between_primary_and_backups,
        one_way_from_primary,
        one_way_to_primary,
        backup_cut_off,
        refused_while_alive,
        primary_cut_off_from_etcd,
    )
}


async def run_scenario(deployment: Deployment, cluster: NetworkCluster, name: str) -> str:
    """Load, fault, healing, then: in sync, equal states, nothing lost, torn or twice, nobody fooled. One line about it."""
    started, machines = time.monotonic(), cluster.machines
    primary = await deployment.primary_of(SET)
    addresses = {broker: local.address for broker, local in deployment.cluster.brokers.items()}
    queue = f"{name}-watch"
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(queue, set_name=SET)
        workload = AuditedWorkload(
            client, deployment.addresses, SET, name=name, senders=2, movers=2, patience=IMPATIENT
        )
        async with watching(addresses, SET, queue) as heard:
            backups = [broker for broker in SETS[SET] if broker != primary]
            scene = Scene(deployment, machines, workload, heard, primary, backups, [])
            async with workload.running():
                await workload.committed_since(15)
                await SCENARIOS[name](scene)
                await workload.committed_since(15)
                await deployment.until_in_sync(3)
        await workload.check()
        bodies = [message.body async for message in session.browse(queue)]
        assert len(set(bodies)) == len(bodies), "a watch's message is there twice"
        lost = {one.body for one in heard} - set(bodies)
        assert not lost, f"a watch was told that they are committed: {sorted(lost)[:10]}"
    check_fenced(heard)
    for set_name in SETS:
        hashes = await deployment.state_hashes(set_name)
        assert len(hashes) == 3, hashes
        assert len(set(hashes.values())) == 1, hashes
    stores = {broker: cluster.store_address(broker) for broker in BROKERS}
    model = await check_clients_of(SET, stores, workload)
    committed = sum(life.is_committed for life in model.transactions.values())
    scene.notes.append(f"checked in the log: {model.end} indexes, {committed} committed transactions")
    notes = "; ".join([*scene.notes, f"{len(heard)} answers watched", f"{time.monotonic() - started:.1f} s"])
    assert workload.report.killed_in_flight > 0
    return f"{name}: {workload.summary()}; {notes}"


@contextlib.asynccontextmanager
async def running(directory: Path, machines: Machines) -> AsyncIterator[tuple[Deployment, NetworkCluster]]:
    async with NetworkCluster(directory, machines) as cluster:
        deployment = Deployment(cluster)
        async with deployment.client() as client:
            for name, members in SETS.items():
                await client.administration.create_set(name, members)
        await deployment.until_in_sync(3)
        yield deployment, cluster


async def main(prefix: str, directory: Path) -> None:
    machines = Machines(MACHINES, prefix)
    try:
        async with running(directory, machines) as (deployment, cluster):
            while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
                answer = {"name": name, "summary": "", "error": ""}
                try:
                    answer["summary"] = await run_scenario(deployment, cluster, name)
                except Exception:
                    machines.heal()
                    answer["error"] = f"{traceback.format_exc()}\n{deployment.logs()}"
                print(json.dumps(answer), flush=True)
    finally:
        machines.remove()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
