"""What a broker does with its lease beside renewing it."""

import asyncio
import time
from pathlib import Path
from typing import cast

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Keys
from lockstep.core.effects import AnyEffect
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import AnyInput, Tick
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient, EtcdInDoubt, EtcdRejected, LeaseGranted
from lockstep.runtime.lease_renewals import LeaseRenewals, Renewal
from lockstep.runtime.serving import ServingRights
from services.broker.core.lease_keeper import LeaseSettings
from services.broker.lease_loop import LeaseLoop


class Etcd:
    """Grants and renews; the first puts fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.happened: list[str] = []
        self.has_put = asyncio.Event()
        self.revision = 0
        self.seen: list[int] = []

    async def lease_grant(self, ttl_seconds: int, lease_id: int) -> LeaseGranted:
        return LeaseGranted(lease_id, ttl_seconds)

    async def renew(self, lease_id: int) -> Renewal:
        self.revision += 7
        return Renewal(boottime_ms(), 3, self.revision)

    async def lease_revoke(self, lease_id: int) -> None:
        self.happened.append("revoked")

    async def transact(self, *_: object) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.has_put.set()


def lease_loop(etcd: Etcd, driver: Driver | None = None, lease_file: Path | None = None) -> LeaseLoop:
    return LeaseLoop(
        LeaseSettings(),
        cast(EtcdClient, etcd),
        cast(LeaseRenewals, etcd),
        ClusterView(Keys("c")),
        driver or Driver(),
        ServingRights(),
        BrokerId("b1"),
        Incarnation("p1"),
        lease_file,
        etcd.seen.append,
    )


async def test_the_running_key_is_put_until_etcd_has_it() -> None:
    doubt = EtcdInDoubt(ErrorCode.UNAVAILABLE, "an election")
    etcd = Etcd(doubt, EtcdRejected(ErrorCode.UNAVAILABLE, "an election"))
    loop = lease_loop(etcd)
    running = asyncio.ensure_future(loop.run())
    loop.store_answered()
    await asyncio.wait_for(etcd.has_put.wait(), 10)
    assert not etcd.failures
    running.cancel()
    await loop.stop()


async def test_renewals_tell_how_far_etcd_is() -> None:
    etcd = Etcd()
    loop = lease_loop(etcd)
    running = asyncio.ensure_future(loop.run())
    async with asyncio.timeout(20):
        while not etcd.seen:
            loop.store_answered()
            await asyncio.sleep(0.05)
    assert etcd.seen[0] == 7
    running.cancel()
    await loop.stop()


async def test_a_lease_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    etcd = Etcd()
    loop = lease_loop(etcd, lease_file=tmp_path / "is not there" / "lease")
    running = asyncio.ensure_future(loop.run())
    loop.store_answered()
    await asyncio.wait_for(etcd.has_put.wait(), 10)
    assert loop.lease_id
    running.cancel()
    await loop.stop()


class Busy:
    """A core for which each input is much work."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        time.sleep(0.002)
        self._happened.append(type(given).__name__)
        return []


async def test_replicas_hear_that_the_lease_is_lost_before_it_is_revoked_however_much_waits() -> None:
    etcd, driver, orders = Etcd(), Driver(), SetName("orders")
    driver.host(orders, Busy(etcd.happened))
    loop = lease_loop(etcd, driver)
    running = asyncio.ensure_future(loop.run())
    loop.store_answered()
    await asyncio.wait_for(etcd.has_put.wait(), 10)
    for _ in range(100):
        driver.feed(Tick(orders))
    await loop.stop()
    assert etcd.happened.index("LeaseLost") < etcd.happened.index("revoked")
    running.cancel()
