"""What a broker does with its lease beside renewing it."""

import asyncio
from typing import cast

from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Incarnation
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient, EtcdInDoubt, EtcdRejected, LeaseGranted
from lockstep.runtime.serving import ServingRights
from services.broker.core.lease_keeper import LeaseSettings
from services.broker.lease_loop import LeaseLoop


class Etcd:
    """Grants and renews; the first puts fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.has_put = asyncio.Event()

    async def lease_grant(self, ttl_seconds: int, lease_id: int) -> LeaseGranted:
        return LeaseGranted(lease_id, ttl_seconds)

    async def lease_renew(self, lease_id: int) -> int:
        return 3

    async def lease_revoke(self, lease_id: int) -> None:
        return None

    async def transact(self, *_: object) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.has_put.set()


async def test_the_running_key_is_put_until_etcd_has_it() -> None:
    doubt = EtcdInDoubt(ErrorCode.UNAVAILABLE, "an election")
    etcd = Etcd(doubt, EtcdRejected(ErrorCode.UNAVAILABLE, "an election"))
    loop = LeaseLoop(
        LeaseSettings(),
        cast(EtcdClient, etcd),
        ClusterView(Keys("c")),
        Driver(),
        ServingRights(),
        BrokerId("b1"),
        Incarnation("p1"),
        None,
    )
    running = asyncio.ensure_future(loop.run())
    loop.store_answered()
    await asyncio.wait_for(etcd.has_put.wait(), 10)
    assert not etcd.failures
    running.cancel()
    await loop.stop()
