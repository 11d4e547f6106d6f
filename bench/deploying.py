"""Clusters of benchmarks: those of the tests, on an etcd that ends when the benchmark does, however that ends."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.integration.cluster import Deployment
from tests.integration.cluster import deployed as deployed_on
from tests.integration.etcd_members import EtcdMembers, running_members


@contextlib.asynccontextmanager
async def deployed(
    directory: Path,
    *,
    sets: dict[str, list[str]],
    brokers: int = 3,
    coordinators: int = 0,
    proxies: int = 0,
    broker_arguments: Sequence[str] = (),
    etcd_members: int = 1,
) -> AsyncIterator[tuple[Deployment, EtcdMembers]]:
    """A cluster with its sets served and in sync, and its etcd; stopped at the end, whatever happened."""
    async with (
        running_members(directory / "etcd", etcd_members) as etcd,
        deployed_on(
            directory,
            sets=sets,
            brokers=brokers,
            coordinators=coordinators,
            proxies=proxies,
            broker_arguments=broker_arguments,
            etcd_endpoints=etcd.endpoints,
        ) as deployment,
    ):
        yield deployment, etcd
