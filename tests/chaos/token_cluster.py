"""Everything that a distributed transaction needs, as real processes: brokers with stores, etcd, two coordinators, a database
and its participant; and the harm that is done to them.

Law: whatever was killed runs again when `harm` returns; and what is in doubt is asked of those who hold it.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg

from lockstep.core.decision_log import DecisionKeys
from lockstep.core.errors import LockstepError
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from lockstep.wire.v1 import cluster_pb2 as pb
from tests.integration.cluster import SETS, Deployment, deployed, is_served
from tests.integration.coordination import CoordinatorClient
from tests.integration.coordinator_processes import Coordinators
from tests.integration.postgres_process import PostgresProcess

BROKER_KINDS = ("primary", "backup", "store")
"""One of these at a time, and only while everybody is in sync: two of three at once is another test."""
OTHER_KINDS = ("postgres", "coordinator", "participant")
KINDS = (*BROKER_KINDS, *OTHER_KINDS)
Connection = psycopg.AsyncConnection[tuple[object, ...]]


class TokenCluster:
    """Lives for one test or module, from `token_cluster`."""

    def __init__(self, deployment: Deployment, postgres: PostgresProcess) -> None:
        assert deployment.cluster.etcd is not None
        (port,) = choose_ports(1)
        address, etcd = f"127.0.0.1:{port}", deployment.cluster.etcd.endpoint
        self.deployment = deployment
        self.postgres = postgres
        self.coordinators = Coordinators(deployment)
        self.clients: list[CoordinatorClient] = []
        """One for each of the two coordinators."""
        self.participant_name = f"grpc://{address}/rows"
        self.kills: Counter[str] = Counter()
        self.killed_at = 0.0
        """Monotonic seconds, of the last of them."""
        self._etcd = etcd
        command = (
            *(sys.executable, "-m", "services.postgres_participant", "--name", "rows"),
            *("--dsn", postgres.dsn, "--listen", address, "--etcd", etcd, "--cluster", "local"),
            *("--orphan-every-seconds", "1", "--orphan-age-seconds", "3"),
        )
        self._address = address
        self._participant = ChildProcess(
            "postgres participant", command, deployment.cluster.directory / "participant.log"
        )

    async def start(self) -> None:
        """What comes on top of the brokers."""
        self.clients = [await self.coordinators.start() for _ in range(2)]
        await self._start_participant()

    async def stop(self) -> None:
        await self._participant.kill()
        await self.coordinators.stop()

    async def connect(self) -> Connection:
        """A connection that waits for nothing longer than a few seconds: rows may be held by what is prepared."""
        return await psycopg.AsyncConnection.connect(
            self.postgres.dsn, connect_timeout=3, options="-c lock_timeout=3000 -c statement_timeout=5000"
        )

    async def query(self, statement: str) -> list[tuple[object, ...]]:
        async with await self.connect() as connection:
            return await (await connection.execute(statement.encode())).fetchall()

    # What is in doubt

    async def in_doubt(self) -> list[str]:
        """Prepared branches of all sets, prepared transactions of the database, and what the decision log has not finished."""
        found = []
        async with self.deployment.client() as client, client.session() as session:
            for name in SETS:
                manager = await session.resource_manager(name)
                found += [f"{name} {branch}" for branch in await manager.recover()]
        found += [f"database {gid}" for (gid,) in await self.query("select gid from pg_prepared_xacts")]
        keys = DecisionKeys("local")
        async with EtcdClient(self._etcd) as etcd:
            entries, _ = await etcd.get_prefix(keys.prefix)
        return found + [one.key for one in entries if not one.key.startswith(keys.all_coordinators)]

    async def listed(self) -> object:
        """What `lockstep tx list` shows."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lockstep.cli", "tx", "list", "--json"),
            *("--brokers", ",".join(self.deployment.addresses)),
            *("--coordinators", ",".join(client.address for client in self.clients)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        return json.loads(out)

    # Harm

    async def is_in_sync(self) -> bool:
        """Whether every set is served with all of its brokers in sync."""
        try:
            status = await self.deployment.status()
        except LockstepError:
            return False
        sets: list[pb.GetClusterStatusResponse.ResourceSet] = list(status.view.sets)
        return len(sets) == len(SETS) and all(
            len(one.in_sync) == len(SETS[one.name]) and is_served(status, one) for one in sets
        )

    async def harm(self, kind: str, set_name: str, chance: random.Random) -> None:
        """SIGKILL, a short pause, and a new start; PostgreSQL is shut down at once, and recovers. Returns when it runs again."""
        self.kills[kind] += 1
        self.killed_at = time.monotonic()
        pause_seconds = chance.uniform(0, 1)
        match kind:
            case "postgres":
                await self.postgres.crash()
                await asyncio.sleep(pause_seconds)
                await self.postgres.start()
            case "participant":
                await self._participant.kill()
                await asyncio.sleep(pause_seconds)
                await self._start_participant()
            case "coordinator":
                client = chance.choice(self.clients)
                child = self.coordinators.child(client)
                await child.kill()
                await asyncio.sleep(pause_seconds)
                await child.start()
                await wait_for_port(child, client.address)
            case "store":
                name = chance.choice(sorted(self.deployment.cluster.brokers))
                await self.deployment[name].store.kill()
                await asyncio.sleep(pause_seconds)
                await self.deployment.cluster.start_store(name)
            case _:
                name = await self.deployment.primary_of(set_name, 60)
                if kind == "backup":
                    name = chance.choice(sorted(set(self.deployment.cluster.brokers) - {name}))
                await self.deployment[name].broker.kill()
                await asyncio.sleep(pause_seconds)
                await self.deployment.cluster.start_broker(name)

    async def heal(self, seconds: float = 60.0) -> None:
        """Returns when everything runs, and every set has all of its brokers in sync."""
        for child in self._children():
            assert child.is_running, f"{child.name} has ended by itself: {child.last_words()}"
        deadline = time.monotonic() + seconds
        while not await self.is_in_sync():
            assert time.monotonic() < deadline, f"not in sync after {seconds:g} s:\n{self.deployment.logs()}"
            await asyncio.sleep(0.1)

    def _children(self) -> list[ChildProcess]:
        brokers = self.deployment.cluster.brokers.values()
        return [
            *(child for local in brokers for child in (local.store, local.broker)),
            *(self.coordinators.child(client) for client in self.clients),
            self._participant,
        ]

    async def _start_participant(self) -> None:
        await self._participant.start()
        await wait_for_port(self._participant, self._address)


@contextlib.asynccontextmanager
async def token_cluster(directory: Path, postgres: PostgresProcess) -> AsyncIterator[TokenCluster]:
    """Three sets with three primaries, two coordinators, and the database's participant; stopped at the end."""
    async with deployed(directory) as deployment:
        cluster = TokenCluster(deployment, postgres)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.stop()
