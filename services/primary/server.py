"""The Primary service (DESIGN 2, 3): one stream of the log per subscribed backup, its acknowledgements, and votes "no".

Law: what a backup says reaches the replica as from the stream that its subscription opened, and from no other; when either of the
two directions ends, the stream is closed for the replica, once.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from lockstep.core.effects import CloseBackupStream, EndBackupStreams, TellBackup
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.inputs import BackupSaid, BackupStreamClosed
from lockstep.core.replication import Acknowledge, Frames, HandedOver, Refuse, Subscribe, ToBackup
from lockstep.runtime.channels import WRITE_BYTES_MAX
from lockstep.runtime.driver import Driver
from lockstep.runtime.handed_over_codec import encode_handed_over
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.replication_codec import (
    decode_acknowledge,
    decode_subscribe,
    encode_to_backup,
    epoch_said,
    to_backup_bytes,
)
from lockstep.runtime.rpc import Context, hear, service, stream_unary, unary, unary_stream
from lockstep.runtime.turns import in_turns
from lockstep.runtime.wire import Serialized
from lockstep.wire.v1 import primary_pb2

_log = logging.getLogger("lockstep.primary")

BACKUP_BYTES_MAX = 512 * 1024 * 1024
"""Frames that may wait for one backup; a slower one loses its stream and comes back as one that lacks them (R8). More than a
primary keeps, committed or not: a member that lacks all of it must get it. Snapshots do not count: they are as long as it is."""

_NONE, _NEVER = LogIndex(0), Epoch(0)


class _Encoding:
    """Encodes what waits for a backup, and remembers it: the others mostly get the same, right behind it."""

    def __init__(self) -> None:
        self._messages: list[ToBackup] = []
        self._encoded: list[Serialized] = []

    def of(self, messages: list[ToBackup]) -> list[Serialized]:
        if messages != self._messages:
            self._messages, self._encoded = messages, list(encode_to_backup(messages, WRITE_BYTES_MAX))
        return self._encoded


class _LastWords:
    """Encodes what is said last, which may be long, in turns: once for all backups of a set, who are told at the same time."""

    def __init__(self) -> None:
        self._encoding: dict[SetName, tuple[HandedOver, asyncio.Future[Serialized]]] = {}

    async def of(self, word: HandedOver) -> Serialized:
        told, encoding = self._encoding.get(word.set_name, (None, None))
        if told is not word or encoding is None:
            encoding = asyncio.ensure_future(in_turns(encode_handed_over(word)))
            self._encoding[word.set_name] = word, encoding
            encoding.add_done_callback(lambda done: self._forget(word.set_name, done))
        return await asyncio.shield(encoding)  # Whoever waits may be cancelled, and others wait on.

    def _forget(self, set_name: SetName, done: asyncio.Future[Serialized]) -> None:
        if set_name in self._encoding and self._encoding[set_name][1] is done:
            del self._encoding[set_name]


@dataclass(slots=True)
class _BackupStream:
    """One subscription, from Subscribe to the end of either direction."""

    number: int
    subscribe: Subscribe
    encoding: _Encoding
    outbox: Outbox[ToBackup] = field(default_factory=Outbox)
    commit_index: LogIndex = _NONE
    """The last one said."""
    epoch: Epoch = _NEVER
    frames_bytes: int = 0
    """Of frames that wait."""
    acknowledging: asyncio.Task[object] | None = None
    """The handler of the Acknowledge stream, when there is one."""
    context: Any = None
    """Of the Subscribe call."""

    def write(self) -> None:
        """What waits, at once if it can be."""
        self.outbox.write_now(WRITE_BYTES_MAX, self._write_now)

    def _write_now(self, messages: list[ToBackup]) -> bool:
        if isinstance(messages[-1], HandedOver):
            return False  # It may be long.
        encoded = self.encoding.of(messages)
        if len(encoded) != 1 or not self.context.write_now(encoded[0]):
            return False
        self.written(messages)
        return True

    def written(self, messages: Sequence[ToBackup]) -> None:
        self.frames_bytes -= sum([to_backup_bytes(m) for m in messages if isinstance(m, Frames)])


class PrimaryService:
    """Lives as long as the process; hosted by its gRPC server, driven by effects from the driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._streams: dict[int, _BackupStream] = {}
        self._by_subscription: dict[str, _BackupStream] = {}
        self._encoding = _Encoding()
        self._last_words = _LastWords()
        driver.on(TellBackup, self._tell)
        driver.on(CloseBackupStream, self._close)
        driver.on(EndBackupStreams, self._end_all)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service(
            "Primary",
            {
                "Subscribe": unary_stream(self._subscribe),
                "Acknowledge": stream_unary(self._acknowledge),
                "Refuse": unary(primary_pb2.RefuseRequest, self._refuse),
            },
        )

    def waiting_bytes(self) -> int:
        """What waits for all backups together."""
        return sum(stream.outbox.bytes_waiting for stream in self._streams.values())

    # Effects

    def _tell(self, effect: TellBackup) -> None:
        stream = self._streams.get(effect.stream)
        if stream is None:
            return
        message = effect.message
        size = to_backup_bytes(message)
        stream.epoch = message.epoch
        if isinstance(message, Frames):
            stream.commit_index = message.commit_index
            stream.frames_bytes += size
        stream.outbox.put(message, size, wakes=False)
        self._driver.write_later(stream.outbox, stream.write)
        if stream.frames_bytes > BACKUP_BYTES_MAX:
            _log.warning(
                "set=%s backup=%s event=backup_too_slow bytes=%d",
                effect.set_name,
                stream.subscribe.broker,
                stream.frames_bytes,
            )
            self._end(stream)

    def _close(self, effect: CloseBackupStream) -> None:
        stream = self._streams.get(effect.stream)
        if stream is not None:
            stream.outbox.finish()

    def _end_all(self, effect: EndBackupStreams) -> None:
        for stream in self._streams.values():
            if stream.subscribe.set_name == effect.set_name:
                stream.outbox.finish()

    # Calls

    async def _subscribe(self, data: bytes, context: Context) -> None:
        subscribe, subscription = decode_subscribe(data)
        self._check_set(subscribe.set_name)
        if subscription in self._by_subscription:
            raise Rejected(ErrorCode.ALREADY_EXISTS, "this subscription is open", subscription=subscription)
        stream = _BackupStream(
            self._driver.new_stream(), subscribe, self._encoding, epoch=subscribe.epoch, context=context
        )
        self._streams[stream.number] = stream
        self._by_subscription[subscription] = stream
        self._driver.feed(BackupSaid(subscribe.set_name, stream.number, subscribe))
        call: Any = context
        try:
            while messages := await stream.outbox.take(WRITE_BYTES_MAX):
                *before, last = messages
                if not isinstance(last, HandedOver):
                    before = messages
                for encoded in self._encoding.of(before) if before else ():
                    await call.write(encoded)
                if isinstance(last, HandedOver):
                    await call.write(await self._last_words.of(last))
                stream.written(messages)
        finally:
            del self._by_subscription[subscription]
            self._end(stream)

    async def _acknowledge(self, context: Context) -> bytes:
        stream: _BackupStream | None = None
        task = asyncio.current_task()

        def take(data: bytes | memoryview) -> bool:
            nonlocal stream
            subscription, epoch, log_end = decode_acknowledge(data)
            if stream is None:
                stream = self._find(subscription)
                stream.acknowledging = task
            if stream.number not in self._streams:
                return False
            subscribe = stream.subscribe
            acknowledge = Acknowledge(
                subscribe.set_name, epoch, subscribe.broker, subscribe.incarnation, log_end
            )
            self._driver.feed(BackupSaid(subscribe.set_name, stream.number, acknowledge))
            return True

        try:
            await hear(context, take)
        finally:
            if stream is not None:
                stream.acknowledging = None
                self._end(stream)
        response = primary_pb2.AcknowledgeResponse()
        if stream is not None:
            response = primary_pb2.AcknowledgeResponse(epoch=stream.epoch, commit_index=stream.commit_index)
        return response.SerializeToString()

    async def _refuse(self, request: primary_pb2.RefuseRequest) -> primary_pb2.RefuseResponse:
        stream = self._find(request.subscription)
        subscribe = stream.subscribe
        refuse = Refuse(
            subscribe.set_name,
            epoch_said(request.epoch),
            subscribe.broker,
            subscribe.incarnation,
            (LogIndex(request.transaction_index), epoch_said(request.transaction_epoch)),
            request.reason,
        )
        self._driver.feed(BackupSaid(subscribe.set_name, stream.number, refuse))
        return primary_pb2.RefuseResponse(epoch=stream.epoch, commit_index=stream.commit_index)

    # Inside

    def _check_set(self, set_name: SetName) -> None:
        if self._driver.core(set_name) is None:
            raise Rejected(
                ErrorCode.UNKNOWN_SET, f"no replica of {set_name[:80]!r} here", set_name=set_name[:80]
            )

    def _find(self, subscription: str) -> _BackupStream:
        stream = self._by_subscription.get(subscription)
        if stream is None:
            raise Rejected(
                ErrorCode.NOT_FOUND, "no such subscription is open here", subscription=subscription[:80]
            )
        return stream

    def _end(self, stream: _BackupStream) -> None:
        """Ends both directions and tells the replica, once."""
        if self._streams.pop(stream.number, None) is None:
            return
        stream.outbox.abort()
        if stream.acknowledging is not None:
            stream.acknowledging.cancel()
        self._driver.feed(BackupStreamClosed(stream.subscribe.set_name, stream.number))
