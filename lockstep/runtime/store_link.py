"""Store link: a broker process's streams to its own store, one per resource set (DESIGN 5, R6).

Law: what waits leaves as one request where it can, in order; a stream that ended is told to the replica before the next one, and
nothing that was meant for it is sent on the next one. The store counts as alive while it answers heartbeats on a stream of their
own, which it does not while its disk hangs: such a store must not keep a lease alive (history 27).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from lockstep.core.effects import TellStore
from lockstep.core.errors import Rejected
from lockstep.core.ids import SetName
from lockstep.core.inputs import StoreConnected, StoreLost, StoreSaid
from lockstep.core.store_protocol import AnyStoreRequest, AppendFrames, InstallItems
from lockstep.runtime.channels import WRITE_BYTES_MAX, open_channel
from lockstep.runtime.driver import Driver
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.process import spawn
from lockstep.runtime.store_codec import HEARTBEAT, decode_answer, encode_request

_log = logging.getLogger("lockstep.store_link")

_SERVICE = "/lockstep.wire.v1.Store/"
_END: Any = grpc.aio.EOF

HEARTBEAT_SECONDS = 0.25
HEARTBEAT_TIMEOUT_SECONDS = 1.0
RECONNECT_SECONDS = 0.05


@dataclass(slots=True)
class _SetStream:
    """One set's stream to the store, through all its reconnections."""

    set_name: SetName
    outbox: Outbox[AnyStoreRequest] | None = None
    """None: there is no stream."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class StoreLink:
    """Lives as long as the process; `tell` performs `TellStore`, `open` begins a set's stream, `run` is the heartbeat."""

    def __init__(self, address: str, driver: Driver, store_answered: Callable[[], None]) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._driver = driver
        self._store_answered = store_answered
        self._streams: dict[SetName, _SetStream] = {}

    def open(self, set_name: SetName) -> None:
        """Keeps a stream for this set from now on."""
        stream = self._streams[set_name] = _SetStream(set_name)
        stream.tasks.append(spawn(self._keep(stream), f"store stream of {set_name}"))

    def tell(self, effect: TellStore) -> None:
        stream = self._streams.get(effect.set_name)
        if stream is not None and stream.outbox is not None:
            stream.outbox.put(effect.request, _request_bytes(effect.request))

    async def run(self) -> None:
        """The heartbeat; a task of the process."""
        append: Any = self._channel.stream_stream(f"{_SERVICE}Append")
        while True:
            await self._connected()
            call = append()
            try:
                while True:
                    async with asyncio.timeout(HEARTBEAT_TIMEOUT_SECONDS):
                        await call.write(HEARTBEAT)
                        if await call.read() is _END:
                            break
                    self._store_answered()
                    await asyncio.sleep(HEARTBEAT_SECONDS)
            except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            finally:
                call.cancel()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def close(self) -> None:
        tasks = [task for stream in self._streams.values() for task in stream.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()

    # One stream

    async def _keep(self, stream: _SetStream) -> None:
        while True:
            await self._connected()
            why = await self._converse(stream)
            _log.info("set=%s event=store_lost %s", stream.set_name, why)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _connected(self) -> None:
        """Waits until the channel is ready: a stream begun before that would fail at once."""
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def _converse(self, stream: _SetStream) -> str:
        """One stream from its beginning to its end; returns why it ended."""
        append: Any = self._channel.stream_stream(f"{_SERVICE}Append")
        call = append()
        outbox = stream.outbox = Outbox[AnyStoreRequest]()
        self._driver.feed(StoreConnected(stream.set_name))
        halves = [
            asyncio.ensure_future(self._read(call, stream)),
            asyncio.ensure_future(self._write(call, stream, outbox)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            call.cancel()
            ends = await asyncio.gather(*halves, return_exceptions=True)
            outbox.abort()
            stream.outbox = None
            self._driver.feed(StoreLost(stream.set_name))
        return _why(ends)

    async def _read(self, call: Any, stream: _SetStream) -> None:
        while (data := await call.read()) is not _END:
            answer = decode_answer(data)
            if answer is not None:
                self._driver.feed(StoreSaid(stream.set_name, answer))

    async def _write(self, call: Any, stream: _SetStream, outbox: Outbox[AnyStoreRequest]) -> None:
        while requests := await outbox.take(WRITE_BYTES_MAX):
            for request in joined(requests):
                await call.write(encode_request(request))


def joined(requests: Sequence[AnyStoreRequest]) -> Iterator[AnyStoreRequest]:
    """The same requests, appends in a row of one epoch and incarnation made one."""
    gathered: list[AppendFrames] = []
    for request in requests:
        is_append = isinstance(request, AppendFrames)
        if gathered and not (is_append and _is_same_writer(gathered[0], request)):
            yield _one(gathered)
            gathered = []
        if isinstance(request, AppendFrames):
            gathered.append(request)
        else:
            yield request
    if gathered:
        yield _one(gathered)


def _is_same_writer(first: AppendFrames, second: AnyStoreRequest) -> bool:
    return (first.epoch, first.incarnation) == (second.epoch, second.incarnation)


def _one(appends: list[AppendFrames]) -> AppendFrames:
    if len(appends) == 1:
        return appends[0]
    last = appends[-1]
    frames = tuple(frame for append in appends for frame in append.frames)
    return AppendFrames(last.set_name, last.epoch, last.incarnation, frames, last.commit_index)


def _request_bytes(request: AnyStoreRequest) -> int:
    match request:
        case AppendFrames():
            return 64 + sum(len(frame) for frame in request.frames)
        case InstallItems():
            return 64 + sum(len(item.key) + len(item.value) for item in request.items)
        case _:
            return 64


def _why(ends: Sequence[object]) -> str:
    """Why a stream ended, in words; raises what is a bug of ours."""
    for end in ends:
        if isinstance(end, grpc.aio.AioRpcError):
            return f"{end.code().name}: {end.details()}"
        if isinstance(end, Rejected | asyncio.InvalidStateError | grpc.aio.UsageError):
            return str(end)
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end
    return "closed by the store"
