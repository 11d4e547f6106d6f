"""Store client: a broker's streams to its own store, one per resource set (DESIGN 2, 5).

Law: the replica hears `StoreConnected` when the store has answered on a new stream, `StoreSaid` for what is said on it, and
`StoreLost` once when it ends, whatever ended it; nothing of a stream is heard after that, and nothing told between two streams
is sent on the second. Every answer, heartbeats included, is told to whoever renews the lease (R6).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from lockstep.core.effects import ReadMessages, TellStore
from lockstep.core.errors import Rejected
from lockstep.core.ids import SetName
from lockstep.core.inputs import MessagesRead, StoreConnected, StoreLost, StoreSaid
from lockstep.core.replication import FRAMES_IN_ONE
from lockstep.core.store_protocol import AnyStoreAnswer, AnyStoreRequest, AppendFrames, InstallItems
from lockstep.runtime.big_bytes import BIG_BYTES
from lockstep.runtime.channels import WRITE_BYTES_MAX, Channels
from lockstep.runtime.driver import Driver
from lockstep.runtime.hearing import hear_decoded
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.process import spawn
from lockstep.runtime.pulses import Pulse, Pulses
from lockstep.runtime.store_codec import (
    HEARTBEAT,
    decode_answer,
    decode_long_answer,
    decode_messages_read,
    encode_read_messages,
    encode_request,
)

RETRY_SECONDS = 0.05
"""Between two attempts to reach a store: it is on the same machine or beside it."""
WAITING_BYTES_MAX = 256 << 20
"""Requests that may wait for the store; beyond it the stream is given up, and the replica sends again from the store's log
end.
"""
SILENT_ROUNDS_MAX = 20
"""4.5 s. A heartbeat waits behind what was sent before it, and installing a snapshot is much; that a store hangs is noticed
earlier by its replica, which knows what it waits for, and by the lease."""

READ_SECONDS = 5.0
"""For contents of messages: the store may be consolidating, and a disk that takes longer hangs."""

_log = logging.getLogger("lockstep.store_client")


@dataclass(slots=True)
class _Stream:
    """One stream, from its opening to its end."""

    set_name: SetName
    outbox: Outbox[AnyStoreRequest | None] = field(default_factory=Outbox)
    is_connected: bool = False
    """The store has answered: the replica knows of it."""
    call: Any = None
    pulse: Pulse | None = None

    def write(self) -> None:
        """What waits, at once if it can be."""
        self.outbox.write_now(WRITE_BYTES_MAX, self._write_now)

    def _write_now(self, requests: list[AnyStoreRequest | None]) -> bool:
        joined = join_appends(requests)
        if len(joined) != 1 or joined[0] is None or not self.call.write_now(encode_request(joined[0])):
            return False
        if self.pulse is not None:
            self.pulse.has_sent = True
        return True


class StoreClient:
    """Lives as long as the broker process; driven by `TellStore` effects. `on_answer` is called for every sign of life."""

    def __init__(
        self,
        driver: Driver,
        pulses: Pulses,
        channels: Channels,
        address: str,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._driver = driver
        self._pulses = pulses
        self._channels = channels
        self._address = address
        self._on_answer = on_answer
        self._streams: dict[SetName, _Stream] = {}
        self._tasks: dict[SetName, asyncio.Task[None]] = {}
        self._reading: set[asyncio.Task[None]] = set()
        driver.on(TellStore, self._tell)
        driver.on(ReadMessages, self._read_messages)

    def open(self, set_name: SetName) -> None:
        """Keeps a stream open for this set from now on. The driver hosts its core already."""
        if set_name not in self._tasks:
            self._tasks[set_name] = spawn(self._keep_open(set_name), f"store stream of {set_name}")

    async def close_set(self, set_name: SetName) -> None:
        """Ends the set's stream; the replica hears nothing of that."""
        self._streams.pop(set_name, None)
        task = self._tasks.pop(set_name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Ends all streams; the process is about to end."""
        for task in list(self._reading):
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        for set_name in list(self._tasks):
            await self.close_set(set_name)

    def waiting_bytes(self, set_name: SetName) -> int:
        """What the store has not taken yet."""
        stream = self._streams.get(set_name)
        return stream.outbox.bytes_waiting if stream is not None else 0

    def _tell(self, effect: TellStore) -> None:
        stream = self._streams.get(effect.set_name)
        if stream is None or not stream.is_connected:
            return
        stream.outbox.put(effect.request, _size_of(effect.request), wakes=False)
        self._driver.write_later(stream.outbox, stream.write)
        if stream.outbox.bytes_waiting > WAITING_BYTES_MAX:
            _log.warning("set=%s event=store_too_slow", effect.set_name)
            stream.outbox.abort()

    def _read_messages(self, effect: ReadMessages) -> None:
        task = spawn(self._ask_for_messages(effect), f"reading messages of {effect.set_name}")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _ask_for_messages(self, effect: ReadMessages) -> None:
        ask: Any = self._channels.to(self._address).unary_unary("/lockstep.wire.v1.Store/ReadMessages")
        contents: tuple[tuple[bytes, bytes] | None, ...] | None = ()
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        try:
            while contents is not None and len(contents) < len(effect.messages):
                left_seconds = deadline - asyncio.get_running_loop().time()
                answer = await ask(encode_read_messages(effect, len(contents)), timeout=left_seconds)
                some = decode_messages_read(answer, len(effect.messages) - len(contents))
                contents = contents + some if some is not None else None
        except (grpc.aio.AioRpcError, Rejected) as error:
            contents = None
            _log.info("set=%s event=messages_not_read %r", effect.set_name, error)
        self._driver.feed(MessagesRead(effect.set_name, effect.request, contents))

    async def _keep_open(self, set_name: SetName) -> None:
        while True:
            stream = self._streams[set_name] = _Stream(set_name)
            await self._run(stream)
            if self._streams.get(set_name) is not stream:
                return
            del self._streams[set_name]
            if stream.is_connected:
                self._driver.feed(StoreLost(set_name))
            await asyncio.sleep(RETRY_SECONDS)

    async def _run(self, stream: _Stream) -> None:
        append: Any = self._channels.to(self._address).stream_stream("/lockstep.wire.v1.Store/Append")
        call = stream.call = append()
        pulse = stream.pulse = Pulse(lambda: stream.outbox.put(None), stream.outbox.abort, SILENT_ROUNDS_MAX)
        self._pulses.add(pulse)
        stream.outbox.put(None)
        reading = asyncio.ensure_future(self._read(call, stream, pulse))
        writing = asyncio.ensure_future(self._write(call, stream, pulse))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pulses.remove(pulse)
            stream.outbox.abort()
            call.cancel()
            for half in (reading, writing):
                half.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
        self._explain(stream, results)

    async def _read(self, call: Any, stream: _Stream, pulse: Pulse) -> None:
        def tell(answer: AnyStoreAnswer | None) -> bool:
            pulse.has_heard = True
            self._on_answer()
            if self._streams.get(stream.set_name) is not stream:
                return False
            if not stream.is_connected:
                stream.is_connected = True
                self._driver.feed(StoreConnected(stream.set_name))
            if answer is not None:
                self._driver.feed(StoreSaid(stream.set_name, answer))
            return True

        await hear_decoded(call, BIG_BYTES, decode_answer, decode_long_answer, tell)

    @staticmethod
    async def _write(call: Any, stream: _Stream, pulse: Pulse) -> None:
        while requests := await stream.outbox.take(WRITE_BYTES_MAX):
            for request in join_appends(requests):
                await call.write(encode_request(request) if request is not None else HEARTBEAT)
            pulse.has_sent = True

    def _explain(self, stream: _Stream, results: Sequence[object]) -> None:
        """Logs why a stream ended; lets our own bugs through."""
        for result in results:
            if isinstance(result, grpc.aio.AioRpcError | Rejected):
                text = result.details() if isinstance(result, grpc.aio.AioRpcError) else str(result)
                if stream.is_connected:
                    level = logging.WARNING if isinstance(result, Rejected) else logging.INFO
                    _log.log(
                        level, "set=%s store=%s event=store_lost %s", stream.set_name, self._address, text
                    )
            elif isinstance(result, BaseException) and not isinstance(
                result, asyncio.CancelledError | asyncio.InvalidStateError | grpc.aio.BaseError
            ):
                raise result


def join_appends(requests: Sequence[AnyStoreRequest | None]) -> list[AnyStoreRequest | None]:
    """Appends in a row become one, as long as that has few frames: the cost of a stream is per message, and that of taking one in
    per frame.
    """
    if len(requests) == 1:
        return list(requests)
    joined: list[AnyStoreRequest | None] = []
    row: list[AppendFrames] = []
    count = 0

    def end_row() -> None:
        if row:
            first, frames = row[0], tuple(frame for append in row for frame in append.frames)
            commit_index = max(append.commit_index for append in row)
            joined.append(AppendFrames(first.set_name, first.epoch, first.incarnation, frames, commit_index))
            row.clear()

    for request in requests:
        if not isinstance(request, AppendFrames):
            end_row()
            joined.append(request)
            continue
        is_other = row and (row[0].epoch, row[0].incarnation) != (request.epoch, request.incarnation)
        if is_other or (row and count + len(request.frames) > FRAMES_IN_ONE):
            end_row()
        count = (count if row else 0) + len(request.frames)
        row.append(request)
    end_row()
    return joined


def _size_of(request: AnyStoreRequest) -> int:
    if isinstance(request, AppendFrames):
        return sum(map(len, request.frames))
    if isinstance(request, InstallItems):
        return sum(len(item.key) + len(item.value) for item in request.items)
    return 0
