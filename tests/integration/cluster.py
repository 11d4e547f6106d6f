"""Clusters of real processes for tests: three brokers with their stores, one etcd, three sets with three different primaries.

Law: whatever a test does to it, its processes end with the fixture; and every wait has an end and says what it waited for.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from lockstep.client.administration import ClusterStatus
from lockstep.client.client import Client, connect
from lockstep.core.errors import LockstepError
from lockstep.runtime.local_cluster import LocalBroker, LocalCluster
from lockstep.wire.v1 import cluster_pb2 as pb

SETS = {"east": ["B1", "B2", "B3"], "west": ["B2", "B3", "B1"], "north": ["B3", "B1", "B2"]}
"""The first broker of each is its first primary."""
WAIT_SECONDS = 60.0
"""For what has to happen: processes start slowly where much else runs."""


class Deployment:
    """A running cluster and what tests ask of it; from `deployed`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def __getitem__(self, broker: str) -> LocalBroker:
        return self.cluster.brokers[broker]

    @property
    def addresses(self) -> list[str]:
        return self.cluster.addresses

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = await connect(self.addresses)
        try:
            yield client
        finally:
            await client.close()

    async def status(self, *, with_state_hash: bool = False) -> ClusterStatus:
        async with self.client() as client:
            return await client.administration.status(with_state_hash=with_state_hash)

    async def until(
        self, what: str, holds: Callable[[ClusterStatus], bool], seconds: float = WAIT_SECONDS
    ) -> ClusterStatus:
        """Asks for the status until something holds; fails with `what` and the last status."""
        async with Client(self.addresses) as client:
            return await until(what, client.administration.status, holds, seconds)

    async def until_in_sync(self, count: int = 3, seconds: float = WAIT_SECONDS) -> ClusterStatus:
        """Waits until every set is served with `count` members in sync."""
        return await self.until(
            f"every set is served with {count} in sync",
            lambda status: (
                bool(status.view.sets)
                and all(len(one.in_sync) == count and is_served(status, one) for one in status.view.sets)
            ),
            seconds,
        )

    async def primary_of(self, set_name: str, seconds: float = WAIT_SECONDS) -> str:
        """The broker that serves the set now."""
        status = await self.until(
            f"{set_name} is served",
            lambda status: any(one.name == set_name and is_served(status, one) for one in status.view.sets),
            seconds,
        )
        return next(one.primary for one in status.view.sets if one.name == set_name)

    async def state_hashes(self, set_name: str, seconds: float = WAIT_SECONDS) -> dict[str, str]:
        """The hash of every replica that runs, once all of them have applied the same index."""
        deadline = time.monotonic() + seconds
        while True:
            status = await self.status(with_state_hash=True)
            replicas = {
                broker: replica
                for broker in status.brokers
                if (replica := status.replica(broker, set_name)) is not None
            }
            if len({replica.state_index for replica in replicas.values()}) == 1:
                return {broker: replica.state_hash for broker, replica in replicas.items()}
            assert time.monotonic() < deadline, f"replicas of {set_name} do not meet: {replicas}"
            await asyncio.sleep(0.1)

    async def kill_and_start(self, names: Sequence[str]) -> None:
        """Brokers with their stores by SIGKILL, and all of them again at once; they are not in sync yet."""
        brokers = [self[name] for name in names]
        await asyncio.gather(*(one.broker.kill() for one in brokers))
        await asyncio.gather(*(one.store.kill() for one in brokers))
        await asyncio.gather(*(self.cluster.start_store(name) for name in names))
        await asyncio.gather(*(self.cluster.start_broker(name) for name in names))

    def store_addresses(self, set_name: str) -> dict[str, str]:
        """Of the stores of a set's brokers."""
        return {name: self.cluster.store_addresses[name] for name in SETS[set_name]}

    def logs(self) -> str:
        """The last lines of every broker, for a failure's message."""
        return "\n".join(
            f"--- {name}\n{local.broker.last_words(15)}" for name, local in self.cluster.brokers.items()
        )


async def until(
    what: str,
    ask: Callable[[], Awaitable[ClusterStatus]],
    holds: Callable[[ClusterStatus], bool],
    seconds: float = WAIT_SECONDS,
) -> ClusterStatus:
    """Asks for the status until something holds; fails with `what` and the last status."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = status = await ask()
            if holds(status):
                return status
        except LockstepError as error:
            last = error
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}; the last status was {last}")


def is_served(status: ClusterStatus, one: pb.GetClusterStatusResponse.ResourceSet) -> bool:
    """Whether the set's primary says that it serves."""
    replica = status.replica(one.primary, one.name)
    return replica is not None and replica.role == pb.ROLE_PRIMARY


@contextlib.asynccontextmanager
async def deployed(
    directory: Path,
    *,
    sets: dict[str, list[str]] | None = None,
    brokers: int = 3,
    coordinators: int = 0,
    proxies: int = 0,
    broker_arguments: Sequence[str] = (),
    proxy_arguments: Sequence[str] = (),
    store_arguments: Sequence[str] = (),
    with_metrics: bool = False,
    etcd_endpoints: str = "",
) -> AsyncIterator[Deployment]:
    """A cluster with its sets served and in sync; stopped at the end, whatever happened.

    `etcd_endpoints`: of an etcd that the caller runs, such as `running_members`; "": one member of its own.
    """
    cluster = LocalCluster(
        directory,
        brokers=brokers,
        coordinators=coordinators,
        proxies=proxies,
        first_port=0,
        # Sets stay where a test has brought them, unless it says otherwise.
        broker_arguments=("--give-back-seconds", "0", *broker_arguments),
        proxy_arguments=proxy_arguments,
        with_metrics=with_metrics,
        store_arguments=store_arguments,
        etcd_endpoints=etcd_endpoints,
    )
    async with cluster:
        deployment = Deployment(cluster)
        wanted = SETS if sets is None else sets
        async with deployment.client() as client:
            for name, members in wanted.items():
                await client.administration.create_set(name, members)
        if wanted:
            await deployment.until_in_sync(max(len(members) for members in wanted.values()))
        yield deployment
