"""A watch on the keys with one prefix: one stream to one endpoint.

Law: it ends loudly. Whatever could hide an event (compaction, a lost or silent connection, a member without a leader) raises,
and the caller reads everything again. Silence is probed with a progress request, because a hung etcd sends nothing at all.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc.aio
from aetcd import rpc

from lockstep.core.errors import ErrorCode
from lockstep.runtime.etcd_codec import key_bytes, prefix_end, watch_batch
from lockstep.runtime.etcd_endpoints import HAS_LEADER, Endpoint
from lockstep.runtime.etcd_failures import describe
from lockstep.runtime.etcd_values import WatchBatch, WatchCompacted, WatchLost


async def watch(
    connect: Callable[[], Awaitable[Endpoint]],
    abandon: Callable[[Endpoint], None],
    prefix: str,
    start_revision: int,
    silence_seconds: float,
) -> AsyncGenerator[WatchBatch, None]:
    """See `EtcdClient.watch_prefix`. `abandon` is told of an endpoint that failed."""
    endpoint = await connect()
    call = endpoint.watch.Watch(metadata=HAS_LEADER, wait_for_ready=False)
    responses = _Responses(call, silence_seconds)
    create = rpc.WatchCreateRequest(
        key=key_bytes(prefix) or b"\0", range_end=prefix_end(prefix), start_revision=start_revision
    )
    try:
        await responses.send(rpc.WatchRequest(create_request=create))
        while True:
            response = await responses.following()
            if response.compact_revision:
                raise WatchCompacted(prefix, start_revision, response.compact_revision)
            if response.canceled:
                raise _Lost(response.cancel_reason or "cancelled by etcd")
            if response.events:
                yield watch_batch(response)
    except _Lost as lost:
        abandon(endpoint)
        raise WatchLost(
            ErrorCode.UNAVAILABLE, f"the watch ended: {lost}", prefix=prefix, endpoint=endpoint.address
        ) from lost
    finally:
        await responses.close()


class _Lost(Exception):
    """The stream ended or fell silent; the message says how."""


class _Responses:
    """The responses of one watch stream. A read is never abandoned half-way: gRPC would cancel the stream with it."""

    def __init__(self, call: Any, silence_seconds: float) -> None:
        self._call = call
        self._silence_seconds = silence_seconds
        self._read: asyncio.Future[Any] | None = None

    async def send(self, request: Any) -> None:
        try:
            async with asyncio.timeout(self._silence_seconds):
                await self._call.write(request)
        except (TimeoutError, asyncio.InvalidStateError) as error:
            raise _Lost(str(error) or "cannot send") from error
        except grpc.aio.AioRpcError as error:
            raise _Lost(describe(error)) from error

    async def following(self) -> Any:
        """The next response; raises `_Lost` when nothing comes, not even the answer to a progress request."""
        is_probed = False
        while True:
            if self._read is None:
                self._read = asyncio.ensure_future(self._call.read())
            done, _ = await asyncio.wait({self._read}, timeout=self._silence_seconds)
            if done:
                return self._take(self._read)
            if is_probed:
                raise _Lost(f"no sign of life for {2 * self._silence_seconds:g} s")
            is_probed = True
            await self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def _take(self, read: "asyncio.Future[Any]") -> Any:
        self._read = None
        if read.cancelled():
            raise _Lost("the client was closed")
        try:
            response = read.result()
        except grpc.aio.AioRpcError as error:
            raise _Lost(describe(error)) from error
        if response is grpc.aio.EOF:
            raise _Lost("closed by etcd")
        return response

    async def close(self) -> None:
        self._call.cancel()
        if self._read is not None:
            self._read.cancel()
            # What became of it is of no interest; that the watch itself is cancelled at this moment is.
            await asyncio.gather(self._read, return_exceptions=True)
