"""Lockstep as a system under load: a cluster of real processes, and the load programs that work on it.

Law: three brokers with a store each unless a case says otherwise, every one with its own files on the measured disk; a commit is
answered when all three have it there.
"""

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec

from bench.cases import Case
from bench.deploying import deployed
from bench.load import Order
from bench.load_programs import Plan
from lockstep.core.commands import QueueOptions
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from tests.integration.cluster import Deployment
from tests.integration.etcd_members import EtcdMembers
from tests.integration.postgres_process import PostgresProcess

NAME = "lockstep"
SYNCS = (
    "a commit or confirm is answered when the primary's store and those of both backups have written and fdatasynced it; a"
    " transaction is one record, atomic over its queues"
)
SET = "bench"


class OwnCluster:
    """From `started`; lives as long as that."""

    name = NAME
    syncs = SYNCS

    def __init__(
        self,
        deployment: Deployment,
        sets: list[str],
        etcd: EtcdMembers,
        amqp_program: Path | None,
    ) -> None:
        self.deployment = deployment
        self.sets = sets
        self.etcd = etcd
        self._amqp_program = amqp_program
        self._amqp_queues: list[str] = []
        self._numbers = iter(range(1, 1_000_000))
        self._postgres: PostgresProcess | None = None
        self._participant: ChildProcess | None = None

    def handles(self, case: Case) -> bool:
        return case.path != "amqp" or self._amqp_program is not None

    async def plan(
        self, case: Case, *, seconds: float, warm_seconds: float = 1.0, client_processes: int = 1
    ) -> Plan:
        """How a case is measured here; the connections are shared among so many load programs. Raises one of `SYSTEM_LOST`."""
        prefix = f"{case.operation}{next(self._numbers)}"
        warm_seconds = 0.0 if case.is_counted else warm_seconds
        if case.path == "amqp":
            commands = [await self._amqp_command(case, prefix, warm_seconds, seconds)]
        else:
            commands = self._commands(case, prefix, warm_seconds, seconds, client_processes)
        return Plan(
            NAME,
            case.path,
            case.workload,
            case.title,
            commands,
            await self.pids(with_proxy=case.path == "amqp"),
            warm_seconds,
            seconds,
        )

    async def pids(self, *, with_proxy: bool = True) -> dict[str, int]:
        """Of all processes, by role; of several sets each may have another primary. Raises one of `SYSTEM_LOST`."""
        cluster = self.deployment.cluster
        primary = await self.deployment.primary_of(self.sets[0])
        found: dict[str, int] = {}
        for name, local in cluster.brokers.items():
            role = "broker" if len(self.sets) > 1 else "primary" if name == primary else "backup"
            found[f"{role} {name}"] = local.broker.pid
            found[f"store {name}"] = local.store.pid
        if with_proxy:
            found |= {f"proxy {name}": process.pid for name, process in cluster.proxies.items()}
        found |= {f"coordinator {name}": process.pid for name, process in cluster.coordinators.items()}
        members = self.etcd.processes
        found |= {"etcd" if len(members) == 1 else member.name: member.pid for member in members}
        if self._participant is not None:
            found["participant"] = self._participant.pid
        return found

    def _commands(
        self, case: Case, prefix: str, warm_seconds: float, seconds: float, processes: int
    ) -> list[list[str]]:
        shares = [case.connections // processes] * processes
        for number in range(case.connections % processes):
            shares[number] += 1
        postgres = self._postgres.dsn if self._postgres is not None else ""
        orders = [
            Order(
                operation=case.operation,
                addresses=self.deployment.addresses,
                sets=self.sets[: case.sets],
                prefix=f"{prefix}-{number}",
                connections=share,
                size=case.size,
                body_bytes=case.body_bytes,
                ring=case.ring,
                warm_seconds=warm_seconds,
                seconds=seconds,
                call=case.call,
                queues=case.queues,
                depth=case.depth,
                rate=case.rate * share / case.connections,
                dsn=postgres,
                participant=self._participant_name(),
            )
            for number, share in enumerate(shares)
            if share
        ]
        return [[sys.executable, "-m", "bench.load", msgspec.json.encode(order).decode()] for order in orders]

    async def _amqp_command(self, case: Case, prefix: str, warm_seconds: float, seconds: float) -> list[str]:
        """Its queues are declared here; those of the case before are removed."""
        assert self._amqp_program is not None, "a case through the proxy, and no client for it"
        ends = ("-a", "-b") if case.operation == "move" else ("",)
        names = [f"{prefix}-{number}{end}" for number in range(case.connections) for end in ends]
        async with self.deployment.client() as client, client.session() as session:
            for name in self._amqp_queues:
                await session.delete_queue(name)
            for name in names:
                await session.declare_queue(name, _options(case), set_name=self.sets[0])
        self._amqp_queues = names
        port = self.deployment.cluster.proxy_addresses[0].rpartition(":")[2]
        numbers = (case.connections, case.size, case.body_bytes, warm_seconds, seconds)
        return [str(self._amqp_program), port, case.operation, prefix, *map(str, numbers)]

    def _participant_name(self) -> str:
        if self._participant is None:
            return ""
        listen = self._participant.command[self._participant.command.index("--listen") + 1]
        return f"grpc://{listen}/bench"

    async def use_postgres(self, postgres: PostgresProcess, directory: Path) -> None:
        """Starts a participant for a database, for the cases that need one."""
        (port,) = choose_ports(1)
        etcd = self.deployment.cluster.etcd_endpoints
        command = (
            *(
                sys.executable,
                "-m",
                "services.postgres_participant",
                "--name",
                "bench",
                "--dsn",
                postgres.dsn,
            ),
            *("--listen", f"127.0.0.1:{port}", "--etcd", etcd, "--cluster", "local"),
        )
        self._postgres = postgres
        self._participant = ChildProcess("participant", command, directory / "participant.log")
        await self._participant.start()
        await wait_for_port(self._participant, f"127.0.0.1:{port}")

    async def stop(self) -> None:
        if self._participant is not None:
            await self._participant.stop()


class ThroughProxy:
    """The same cluster for clients of AMQP 1.0: a system of its own in a run beside others."""

    name = NAME
    syncs = SYNCS

    def __init__(self, cluster: OwnCluster) -> None:
        self._cluster = cluster

    def handles(self, case: Case) -> bool:
        is_known = case.operation in ("publish", "move", "stream", "consume")
        return is_known and self._cluster.handles(_through_proxy(case))

    async def pids(self) -> dict[str, int]:
        return await self._cluster.pids()

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """Under the name of the case as it was given: protocols without calls of many messages send them one by one."""
        return await self._cluster.plan(_through_proxy(case), seconds=seconds, warm_seconds=warm_seconds)


def _through_proxy(case: Case) -> Case:
    return replace(case, path="amqp")


@contextlib.asynccontextmanager
async def started(
    directory: Path,
    *,
    brokers: int = 3,
    sets: int = 1,
    coordinators: int = 0,
    proxies: int = 0,
    etcd_members: int = 1,
    amqp_program: Path | None = None,
) -> AsyncIterator[OwnCluster]:
    """A cluster with its sets in sync, the first broker of the first set its primary; stopped at the end."""
    names = [f"B{number + 1}" for number in range(brokers)]
    members = {
        f"{SET}{number + 1}": [names[(number + place) % brokers] for place in range(brokers)]
        for number in range(sets)
    }
    async with deployed(
        directory,
        sets=members,
        brokers=brokers,
        coordinators=coordinators,
        proxies=proxies,
        etcd_members=etcd_members,
    ) as (deployment, etcd):
        cluster = OwnCluster(deployment, list(members), etcd, amqp_program)
        try:
            yield cluster
        finally:
            await cluster.stop()


def _options(case: Case) -> QueueOptions:
    return QueueOptions(length_max=case.ring, is_evicting=True) if case.ring else QueueOptions()
