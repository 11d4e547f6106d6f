"""A cluster on this machine whose own etcd dies."""

import asyncio
from pathlib import Path

import pytest

from lockstep.core.errors import Rejected
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.local_cluster import LocalCluster


async def test_its_etcd_comes_back_where_everybody_looks_for_it(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=0) as cluster:
        assert cluster.etcd is not None
        endpoint = cluster.etcd.endpoint
        cluster.etcd.kill()
        port = int(endpoint.rpartition(":")[2])
        squatter = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        async with squatter:
            for _ in range(2):
                with pytest.raises(Rejected, match="something else has a port of etcd"):
                    await cluster.start_etcd()
        await cluster.start_etcd()
        assert cluster.etcd.endpoint == endpoint
        async with EtcdClient(endpoint) as client:
            await client.get("/")
