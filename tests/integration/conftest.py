"""A real etcd, and a real PostgreSQL, for the tests of this folder."""

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_process import EtcdProcess
from tests.integration.postgres_process import PostgresProcess, find_postgres, running_postgres


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdProcess]:
    """One member for all tests, which keep to keys of their own (`prefix`) and leave it running."""
    process = asyncio.run(EtcdProcess.start(tmp_path_factory.mktemp("etcd")))
    yield process
    asyncio.run(process.stop())


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresProcess]:
    """One server for all tests, which keep to tables and names of their own and leave it running."""
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian's package postgresql)")
    with running_postgres(binaries) as process:
        yield process


@pytest.fixture
async def client(etcd: EtcdProcess) -> AsyncGenerator[EtcdClient]:
    async with EtcdClient(etcd.endpoint) as client:
        yield client


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Keys that belong to this test."""
    return f"/{request.node.nodeid.replace('::', '/')}/"
