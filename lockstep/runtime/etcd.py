"""Client of etcd: reads, compare-and-swap transactions, leases, watches; several endpoints, one time-out for every call.

Law: a change is sent at most once, and within the time-out by CLOCK_BOOTTIME or not at all: who slept meanwhile may not want it
any more. A transaction whose answer did not come is `EtcdInDoubt`, and only the caller, who knows what it meant, may read again
and repeat it. Reads are linearizable and are tried at every endpoint.

aetcd's own client keeps one endpoint, cannot compare mod revisions and hides header revisions; only its stubs are used.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio
from aetcd import rpc

from lockstep.core.errors import ErrorCode, LockstepError
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd_codec import (
    entry_from,
    key_bytes,
    prefix_end,
    transaction_request,
    transaction_result,
)
from lockstep.runtime.etcd_endpoints import HAS_LEADER, Endpoint, Endpoints, parse_endpoints
from lockstep.runtime.etcd_failures import describe, doubt, refusal
from lockstep.runtime.etcd_values import (
    Absent,
    Compare,
    Delete,
    DeleteDone,
    DeleteEvent,
    Entry,
    EtcdInDoubt,
    EtcdRejected,
    Event,
    Get,
    GetDone,
    LeaseGone,
    LeaseGranted,
    ModRevisionEquals,
    Operation,
    OperationDone,
    Put,
    PutDone,
    PutEvent,
    Transact,
    TransactDone,
    TransactionResult,
    ValueEquals,
    WatchBatch,
    WatchCompacted,
    WatchLost,
    as_read,
    entry_as_read,
)
from lockstep.runtime.etcd_watch import watch

__all__ = [
    "Absent",
    "Compare",
    "Delete",
    "DeleteDone",
    "DeleteEvent",
    "Entry",
    "EtcdClient",
    "EtcdInDoubt",
    "EtcdRejected",
    "Event",
    "Get",
    "GetDone",
    "LeaseGone",
    "LeaseGranted",
    "ModRevisionEquals",
    "Operation",
    "OperationDone",
    "Put",
    "PutDone",
    "PutEvent",
    "Transact",
    "TransactDone",
    "TransactionResult",
    "ValueEquals",
    "WatchBatch",
    "WatchCompacted",
    "WatchLost",
    "as_read",
    "entry_as_read",
]

OPERATIONS_MAX = 64
"""Of one transaction: etcd takes 128 (`--max-txn-ops`), those of a transaction inside it counted as well."""
_PAGE_ENTRIES_MAX = 1000
"""etcd's answer to a read stays far below its 2 MiB."""
_RETRY_PAUSE_SECONDS = 0.05
_Answer = TypeVar("_Answer")


class EtcdClient:
    """A client on one event loop, for as long as its `async with` lasts.

    `endpoints` is "http://a:2379,http://b:2379", "host:port", or a sequence of such; `timeout_seconds` limits every call as a
    whole, connecting included. Cancelling a call leaves its outcome unknown, as `EtcdInDoubt` does.
    """

    def __init__(self, endpoints: str | Sequence[str], timeout_seconds: float = 2.0) -> None:
        self._addresses = parse_endpoints(endpoints)
        self._timeout_seconds = timeout_seconds
        self._endpoints: Endpoints | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        assert self._endpoints is None and not self._is_closed, "a client is entered once"
        self._endpoints = Endpoints(self._addresses)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls and watches under way; may be called again."""
        self._is_closed = True
        if self._endpoints is not None:
            await self._endpoints.close()

    # Reads

    async def get(self, key: str) -> Entry | None:
        """The entry, as of now (linearizable); None if absent. Raises `EtcdRejected` if no endpoint answers in time."""
        response = await self._range(rpc.RangeRequest(key=key_bytes(key)))
        return entry_from(response.kvs[0]) if response.kvs else None

    async def get_many(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Those of these keys (`OPERATIONS_MAX` at most) that exist, as of one moment from now on (linearizable). Raises
        `EtcdRejected` if no endpoint answers in time."""
        assert len(keys) <= OPERATIONS_MAX, "etcd would refuse it"
        request = transaction_request([], [Get(key) for key in keys], [])
        response = await self._read(lambda endpoint: endpoint.kv.Txn, request)
        found = transaction_result(response).responses
        return {
            one.entry.key: one.entry for one in found if isinstance(one, GetDone) and one.entry is not None
        }

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        """All entries whose keys begin with `prefix`, sorted by key, and the one revision that they are read at.

        A watch from that revision + 1 misses nothing. Raises `EtcdRejected`.
        """
        start, end, revision = key_bytes(prefix) or b"\0", prefix_end(prefix), 0
        entries: list[Entry] = []
        while True:
            response = await self._range(
                rpc.RangeRequest(key=start, range_end=end, limit=_PAGE_ENTRIES_MAX, revision=revision)
            )
            revision = revision or response.header.revision
            entries.extend(entry_from(key_value) for key_value in response.kvs)
            if not response.more:
                return entries, revision
            start = response.kvs[-1].key + b"\0"

    async def get_page(self, prefix: str, after: str, limit: int) -> list[Entry]:
        """The first entries, sorted by key, whose keys begin with `prefix` and lie behind `prefix + after` ("": all);
        `limit` at most, and no more than a page of etcd. Raises `EtcdRejected`.
        """
        start = key_bytes(prefix + after) + b"\0" if after else key_bytes(prefix)
        limit = min(limit, _PAGE_ENTRIES_MAX)
        response = await self._range(rpc.RangeRequest(key=start, range_end=prefix_end(prefix), limit=limit))
        return [entry_from(key_value) for key_value in response.kvs]

    def watch_prefix(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Changes of keys that begin with `prefix`, from `start_revision` (at least 1) on, in batches.

        Never ends by itself: raises `WatchCompacted` or `WatchLost` (both `EtcdRejected`), after which the caller reads
        everything again. It notices a silent connection after twice the client's time-out. To leave it early, close it
        (`contextlib.aclosing`).
        """
        assert start_revision >= 1, "revision 0 would mean: from now on, whatever was missed"
        return watch(
            lambda: self._connected(self._deadline()),
            self._opened.prefer_another,
            prefix,
            start_revision,
            self._timeout_seconds,
        )

    # Changes

    async def transact(
        self,
        compares: Sequence[Compare],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> TransactionResult:
        """If all compares hold executes `on_success`, else `on_failure`, atomically; `succeeded` says which. Sent once.

        Raises `EtcdRejected` (not executed), `LeaseGone` (one of its leases is; not executed) or `EtcdInDoubt`.
        """
        request = transaction_request(compares, on_success, on_failure)

        async def send(endpoint: Endpoint, timeout: float) -> TransactionResult:
            return transaction_result(
                await endpoint.kv.Txn(request, timeout=timeout, metadata=HAS_LEADER, wait_for_ready=False)
            )

        lease_ids = {o.lease_id for o in (*on_success, *on_failure) if isinstance(o, Put) and o.lease_id}
        # etcd does not say which lease; with several of them the refusal names none.
        return await self._change("transact", send, lease_ids.pop() if len(lease_ids) == 1 else 0)

    async def lease_grant(self, ttl_seconds: int, lease_id: int = 0) -> LeaseGranted:
        """A new lease; with a `lease_id` of the caller's choice it can be revoked even if the grant was in doubt.

        Raises `EtcdRejected` or `EtcdInDoubt` (a lease that nobody renews ends by itself).
        """
        request = rpc.LeaseGrantRequest(TTL=ttl_seconds, ID=lease_id)

        async def send(endpoint: Endpoint, timeout: float) -> LeaseGranted:
            response = await endpoint.lease.LeaseGrant(
                request, timeout=timeout, metadata=HAS_LEADER, wait_for_ready=False
            )
            return LeaseGranted(response.ID, response.TTL)

        return await self._change("lease_grant", send)

    async def lease_renew(self, lease_id: int) -> int:
        """One round trip; returns the remaining seconds, which count from the *sending* (the caller's clock, DESIGN R6).

        Raises `LeaseGone`, `EtcdRejected` (not renewed) or `EtcdInDoubt` (perhaps renewed: do not count on it).
        """

        async def send(endpoint: Endpoint, timeout: float) -> int:
            call = endpoint.lease.LeaseKeepAlive(timeout=timeout, metadata=HAS_LEADER, wait_for_ready=False)
            try:
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
                response = await call.read()
                if response is grpc.aio.EOF:
                    raise doubt("lease_renew", endpoint.address, "etcd closed the stream")
            finally:
                call.cancel()
            if response.TTL <= 0:
                raise LeaseGone(lease_id)
            return int(response.TTL)

        return await self._change("lease_renew", send, lease_id)

    async def lease_revoke(self, lease_id: int) -> None:
        """Ends the lease and deletes its keys; of one that is gone too. Raises `EtcdRejected` or `EtcdInDoubt`."""
        request = rpc.LeaseRevokeRequest(ID=lease_id)

        async def send(endpoint: Endpoint, timeout: float) -> None:
            await endpoint.lease.LeaseRevoke(
                request, timeout=timeout, metadata=HAS_LEADER, wait_for_ready=False
            )

        try:
            await self._change("lease_revoke", send, lease_id)
        except LeaseGone:
            return

    # Inside

    @property
    def _opened(self) -> Endpoints:
        assert self._endpoints is not None, "use the client with async with"
        return self._endpoints

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_seconds

    async def _connected(self, deadline: float) -> Endpoint:
        if self._is_closed:
            raise EtcdRejected(ErrorCode.UNAVAILABLE, "the etcd client is closed")
        return await self._opened.connected(deadline)

    async def _change(
        self, name: str, send: Callable[[Endpoint, float], Awaitable[_Answer]], lease_id: int = 0
    ) -> _Answer:
        """Sends once, to a connected endpoint, and says of a failure whether it may have been executed."""
        deadline, asked_ms = self._deadline(), boottime_ms()
        endpoint = await self._connected(deadline)
        if boottime_ms() - asked_ms > self._timeout_seconds * 1000:
            text = f"{name} was not sent: nobody could for longer than {self._timeout_seconds:g} s"
            raise EtcdRejected(ErrorCode.UNAVAILABLE, text, endpoint=endpoint.address)
        try:
            answer = await send(endpoint, max(0.001, deadline - time.monotonic()))
            endpoint.is_suspect = False
            return answer
        except grpc.aio.AioRpcError as error:
            refused = refusal(error, lease_id)
            if refused is None or refused.code is ErrorCode.UNAVAILABLE:
                self._opened.prefer_another(endpoint)
            if refused is not None:
                raise refused from error
            raise doubt(name, endpoint.address, describe(error)) from error
        except asyncio.InvalidStateError as error:
            # The stream of a renewal ended before we wrote to it, for a reason that gRPC did not keep.
            raise doubt(name, endpoint.address, error) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(doubt(name, endpoint.address, "the client was closed"), error)
            raise

    async def _range(self, request: Any) -> Any:
        return await self._read(lambda endpoint: endpoint.kv.Range, request)

    async def _read(self, method: Callable[[Endpoint], Callable[..., Awaitable[Any]]], request: Any) -> Any:
        """A call that changes nothing, at one endpoint after the other until the time is over."""
        deadline = self._deadline()
        # A hung member must leave time for another one.
        attempt_seconds = self._timeout_seconds / min(len(self._opened), 3)
        while True:
            endpoint = await self._connected(deadline)
            try:
                timeout = min(attempt_seconds, deadline - time.monotonic())
                answer = await method(endpoint)(
                    request, timeout=max(0.001, timeout), metadata=HAS_LEADER, wait_for_ready=False
                )
                endpoint.is_suspect = False
                return answer
            except grpc.aio.AioRpcError as error:
                refused = refusal(error, 0)
                if refused is not None and refused.code is not ErrorCode.UNAVAILABLE:
                    raise refused from error
                self._opened.prefer_another(endpoint)
                if time.monotonic() + _RETRY_PAUSE_SECONDS >= deadline:
                    raise EtcdRejected(
                        ErrorCode.UNAVAILABLE,
                        f"no answer to a read: {describe(error)}",
                        endpoint=endpoint.address,
                    ) from error
            except asyncio.CancelledError as error:
                self._raise_if_closed(
                    EtcdRejected(ErrorCode.UNAVAILABLE, "the etcd client was closed"), error
                )
                raise
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    def _raise_if_closed(self, closed: LockstepError, error: BaseException) -> None:
        """gRPC reports a closed channel as a cancellation, which it is not for our caller."""
        task = asyncio.current_task()
        if self._is_closed and not (task and task.cancelling()):
            raise closed from error
