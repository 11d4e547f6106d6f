"""Renewals of leases in etcd, by a thread and connections that do nothing else.

Law: whether to renew is decided by whoever asks, on his event loop; from then on no work of that loop, and no other call to etcd,
delays the renewal or decides that it failed. It is sent for as long as its time lasts, and never behind that: who asked and hung
since then lets his lease end (DESIGN R6).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple, cast

import grpc
from aetcd import rpc

from lockstep.core.errors import ErrorCode
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd_endpoints import CHANNEL_OPTIONS, HAS_LEADER, parse_endpoints
from lockstep.runtime.etcd_failures import describe, doubt, refusal
from lockstep.runtime.etcd_values import EtcdInDoubt, EtcdRejected, LeaseGone

_ENDPOINTS_ASKED = 3
"""Within the time of one renewal: a hung member leaves time for another one."""
_PAUSE_SECONDS = 0.05


class Renewal(NamedTuple):
    """One that etcd answered."""

    sent_ms: int
    """CLOCK_BOOTTIME, right before it was sent."""
    ttl_seconds: int
    """What the lease had left then, at least."""
    revision: int
    """Of etcd."""


class _Member:
    """One endpoint; lives as long as its client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.keep_alive: Callable[..., Any] = rpc.LeaseStub(self.channel).LeaseKeepAlive


class LeaseRenewals:
    """Lives as long as its owner's leases; used from one event loop, and closed there."""

    def __init__(self, endpoints: str | Sequence[str], timeout_seconds: float) -> None:
        """`endpoints`: as of `EtcdClient`. `timeout_seconds`: of a renewal, with all that it waits for."""
        self._members = [_Member(address) for address in parse_endpoints(endpoints)]
        self._timeout_seconds = timeout_seconds
        self._attempt_seconds = timeout_seconds / min(len(self._members), _ENDPOINTS_ASKED)
        self._preferred = 0
        self._thread = ThreadPoolExecutor(1, "lease-renewals")
        self._lock = Lock()
        self._call: Any = None
        """The one under way."""
        self._is_closed = False

    async def renew(self, lease_id: int) -> Renewal:
        """Renews it. Raises `LeaseGone`, `EtcdRejected` (not renewed) or `EtcdInDoubt` (perhaps: do not count on it)."""
        deadline = time.monotonic() + self._timeout_seconds
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._renew, lease_id, deadline)

    async def close(self) -> None:
        """Gives up what is under way."""
        with self._lock:
            self._is_closed = True
            if self._call is not None:
                self._call.cancel()
        await asyncio.to_thread(self._thread.shutdown)
        for member in self._members:
            member.channel.close()

    # In the thread

    def _renew(self, lease_id: int, deadline: float) -> Renewal:
        failure: EtcdRejected | EtcdInDoubt = EtcdRejected(
            ErrorCode.UNAVAILABLE, "a renewal was not sent: another one took all of its time"
        )
        while (left := deadline - time.monotonic()) > 0:
            member = self._members[self._preferred]
            try:
                return self._send(member, lease_id, min(left, self._attempt_seconds))
            except EtcdInDoubt as error:
                failure = error
            except grpc.RpcError as error:
                call = cast(grpc.Call, error)
                failure = refusal(call, lease_id) or doubt("lease_renew", member.address, describe(call))
                if self._is_closed or isinstance(failure, LeaseGone):
                    raise failure from error
            self._preferred = (self._preferred + 1) % len(self._members)
            time.sleep(max(0.0, min(_PAUSE_SECONDS, deadline - time.monotonic())))
        raise failure

    def _send(self, member: _Member, lease_id: int, seconds: float) -> Renewal:
        request = iter((rpc.LeaseKeepAliveRequest(ID=lease_id),))
        with self._lock:
            if self._is_closed:
                raise EtcdRejected(ErrorCode.UNAVAILABLE, "lease renewals are closed")
            sent_ms = boottime_ms()
            self._call = member.keep_alive(
                request, timeout=seconds, metadata=HAS_LEADER, wait_for_ready=False
            )
        try:
            response = next(self._call, None)
        finally:
            self._call.cancel()
        if response is None:
            raise doubt("lease_renew", member.address, "etcd closed the stream")
        if response.TTL <= 0:
            raise LeaseGone(lease_id)
        return Renewal(sent_ms, int(response.TTL), response.header.revision)
