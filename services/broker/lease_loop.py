"""Lease loop: performs what the lease keeper decides (DESIGN R6), and keeps the process's running key under the lease.

Law: replicas hear that the lease was lost, and every right to serve has ended, before the lease is revoked. The lease's id stands
in the lease file before the lease is used, so that whoever saw this process exit can revoke it; where that file cannot be
written, the lease ends by itself.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import LeaseExtended, LeaseLost
from lockstep.runtime.clock import boottime_ms, read_now
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import TICK_SECONDS, Driver
from lockstep.runtime.etcd import EtcdClient, EtcdInDoubt, EtcdRejected, Put
from lockstep.runtime.etcd import LeaseGone as EtcdLeaseGone
from lockstep.runtime.lease_renewals import LeaseRenewals
from lockstep.runtime.process import spawn
from lockstep.runtime.serving import ServingRights
from services.broker.core.lease_keeper import (
    GrantLease,
    LeaseCallFailed,
    LeaseGone,
    LeaseGranted,
    LeaseInput,
    LeaseKeeper,
    LeaseRenewed,
    LeaseSettings,
    LeaseTick,
    RenewLease,
    RevokeLease,
    ServeUntil,
    StopServing,
    StoreAnswered,
)

RUNNING_KEY_SECONDS = 0.5
"""Before it is put again, where that failed."""

_log = logging.getLogger("lockstep.lease")


class LeaseLoop:
    """Lives as long as the broker process. `run` is a task of it; `store_answered` is called by the link to the own store."""

    def __init__(
        self,
        settings: LeaseSettings,
        etcd: EtcdClient,
        renewals: LeaseRenewals,
        view: ClusterView,
        driver: Driver,
        rights: ServingRights,
        broker: BrokerId,
        process: Incarnation,
        lease_file: Path | None,
        saw_revision: Callable[[int], None],
    ) -> None:
        """`etcd`: a client that nothing else uses, as nothing else uses `renewals`: what clients have the process do may not come
        before its lease. `saw_revision` hears of etcd's revision, as renewals tell it.
        """
        self._keeper = LeaseKeeper(settings)
        self._etcd = etcd
        self._renewals = renewals
        self._view = view
        self._driver = driver
        self._rights = rights
        self._broker = broker
        self._process = process
        self._lease_file = lease_file
        self._saw_revision = saw_revision
        self._serve_until_ms = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._grants = 0
        self._is_stopped = False

    @property
    def lease_id(self) -> int:
        """The lease held, 0: none, or it is over by the own clock."""
        return self._keeper.held(read_now())

    @property
    def serve_until_ms(self) -> int:
        """CLOCK_BOOTTIME; 0: not at all."""
        return self._serve_until_ms

    def store_answered(self) -> None:
        self._take(StoreAnswered())

    def tell(self, set_name: SetName) -> None:
        """Feeds the current validity to a replica that was made meanwhile."""
        if lease_id := self.lease_id:
            self._driver.feed(LeaseExtended(set_name, lease_id, self._serve_until_ms))

    async def run(self) -> None:
        """Ticks in the loop that runs the cores: a loop that hangs renews nothing."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._take(LeaseTick())

    async def stop(self) -> None:
        """The process ends: gives the lease up, so that nobody has to wait for its end."""
        self._is_stopped = True
        lease_id = self._keeper.lease_id
        self._stop_serving()
        if lease_id:
            await self._revoke(lease_id)

    # Inside

    def _take(self, given: LeaseInput) -> None:
        if self._is_stopped:
            return
        for effect in self._keeper.handle(given, read_now()):
            match effect:
                case GrantLease():
                    self._call(self._grant(effect.ttl_seconds), "lease grant")
                case RenewLease():
                    self._call(self._renew(effect.lease_id), "lease renewal")
                case RevokeLease():
                    self._call(self._revoke(effect.lease_id), "lease revocation")
                case ServeUntil():
                    self._extend(effect.lease_id, effect.serve_until_ms)
                case StopServing():
                    _log.warning("event=lease_lost")
                    self._stop_serving()

    def _extend(self, lease_id: int, serve_until_ms: int) -> None:
        self._serve_until_ms = serve_until_ms
        self._rights.extend(serve_until_ms, boottime_ms())
        for set_name in self._driver.set_names:
            self._driver.feed(LeaseExtended(set_name, lease_id, serve_until_ms))

    def _stop_serving(self) -> None:
        self._serve_until_ms = 0
        self._rights.end_all()
        for set_name in self._driver.set_names:
            self._driver.feed(LeaseLost(set_name))
        # All of it, however much waits before: the lease is revoked next.
        self._driver.drain(math.inf)

    def _call(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(call, name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _grant(self, ttl_seconds: int) -> None:
        # An id of our own: it is in the lease file before etcd knows it, so that no lease is without an owner.
        lease_id = secrets.randbits(62) + 1
        self._grants += 1
        grant = self._grants
        self._write_down(lease_id)
        sent_ms = boottime_ms()
        try:
            granted = await self._etcd.lease_grant(ttl_seconds, lease_id)
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.warning("event=lease_grant_failed %s", error.message)
            if grant == self._grants:
                self._take(LeaseCallFailed())
            return
        if grant != self._grants or self._is_stopped:
            # The keeper gave this call up and has made another one: keys are, or will be, under that lease.
            await self._revoke(granted.lease_id)
            return
        _log.info("event=lease_granted lease=%x seconds=%d", granted.lease_id, granted.ttl_seconds)
        self._take(LeaseGranted(granted.lease_id, granted.ttl_seconds * 1000, sent_ms))
        await self._put_running_key(granted.lease_id)

    def _write_down(self, lease_id: int) -> None:
        if self._lease_file is None:
            return
        try:
            write_lease_file(self._lease_file, lease_id)
        except OSError as error:
            # A full disk, say. Nobody can revoke it then, and whoever is to lead behind this process waits for its end.
            _log.warning("event=lease_file_not_written %s", error)

    async def _put_running_key(self, lease_id: int) -> None:
        put = Put(self._view.running_key(self._broker), self._process.encode(), lease_id)
        while self._keeper.lease_id == lease_id and not self._is_stopped:
            try:
                await self._etcd.transact([], [put])
            except (EtcdRejected, EtcdInDoubt) as error:
                _log.warning("event=running_key_failed %s", error.message)
                await asyncio.sleep(RUNNING_KEY_SECONDS)
            else:
                return

    async def _renew(self, lease_id: int) -> None:
        try:
            renewal = await self._renewals.renew(lease_id)
        except EtcdLeaseGone:
            self._take(LeaseGone(lease_id))
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.warning("event=lease_renewal_failed %s", error.message)
            self._take(LeaseCallFailed())
        else:
            self._take(LeaseRenewed(lease_id, renewal.ttl_seconds * 1000, renewal.sent_ms))
            self._saw_revision(renewal.revision)

    async def _revoke(self, lease_id: int) -> None:
        try:
            await self._etcd.lease_revoke(lease_id)
            _log.info("event=lease_revoked lease=%x", lease_id)
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.warning("event=lease_revocation_failed lease=%x %s", lease_id, error.message)


def write_lease_file(path: Path, lease_id: int) -> None:
    """Decimal, by rename: a reader sees an old id or the new one, never half of one."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(f"{lease_id}\n")
    scratch.replace(path)
