"""The Sessions service (DESIGN 6): one stream of batched commands per (session, resource set).

Law: an answer is written only while the right to serve, under which it was made, has not ended; the check stands right before the
write (DESIGN R6, history 10e). Where one had to be dropped, the stream ends: a client never waits for what will not come.
A slow client costs only its own stream: while much waits for it nothing more is read from it and nothing more is delivered to
it, and one that does not read at all loses its stream. One that says much has turns with all others that do (`long_requests.py`),
and is not read meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from msgspec.structs import replace

from lockstep.core.effects import CloseClientStream, EndClientStreams, TellClient
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.inputs import ClientSaid, ClientStreamClosed, ClientStreamDrained, ClientStreamFull
from lockstep.core.requests import (
    AttachSession,
    Heard,
)
from lockstep.core.server_messages import (
    Answers,
    AnyServerMessage,
    AttachRefused,
    BrokerAnswer,
    BrowseAnswer,
    CandidatesChanged,
    Deliveries,
    SessionAttached,
    Told,
)
from lockstep.runtime.channels import WRITE_BYTES_MAX
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.rpc import Context, hear, read, service, stream_stream
from lockstep.runtime.serving import ServingRight, ServingRights
from lockstep.runtime.session_codec import decode_request, encode_response
from lockstep.runtime.wire import Serialized
from lockstep.transport.stream import MOVED_BYTES
from services.primary.long_requests import (
    SAID_MAX,
    UNHEARD_BYTES_MAX,
    LongRequests,
    Request,
    RequestDecoding,
    Unheard,
)

_log = logging.getLogger("lockstep.sessions")

CLIENT_BYTES_MAX = 8 * 1024 * 1024
"""What may wait for one client before nothing more is read from it: a few of the largest writes."""
CLIENT_STALL_SECONDS = 30.0
"""A client that takes nothing for so long while a write waits has its stream closed: longer than a network needs to come back by
TCP's first retries, and short enough that what waits for dead clients does not gather."""
SHORT_BYTES_MAX = 16 << 10
"""A request of so many bytes is decoded in one step, whatever it is made of: in a few milliseconds."""
CLIENT_STREAMS_MAX = 10_000
"""Streams of clients at once; each costs about 40 KiB."""

_Waiting = tuple[Told, ServingRight | None]


@dataclass(slots=True)
class _ClientStream:
    """One stream of a client."""

    set_name: SetName
    number: int
    outbox: Outbox[_Waiting] = field(default_factory=Outbox)
    is_full: bool = False
    """The replica was told that much waits, and delivers nothing more."""
    writer: asyncio.Task[object] | None = None
    """While a write is under way: whoever writes."""
    writing_since: float = 0.0
    """When it began, or was seen to get on, in the event loop's seconds."""
    unheard: Unheard = field(default_factory=Unheard)
    """Of all streams of the set."""
    said: int = 0
    """Messages that it said since it waited for the cores."""
    unsaid: RequestDecoding | Request | None = None
    """A long request that was read: the reader goes on with it."""
    received_bytes: int = 0
    """Up to the last look, of messages that are whole or on their way."""
    is_stalled: bool = False
    """The client took nothing of one write for too long: its writer was cancelled."""
    context: Any = None
    """Of its call; None: it ends in this process."""
    write: Callable[[], None] | None = None
    """Writes what waits, at once if it can be; None: whoever ends it in this process takes it."""

    def drained(self, driver: Driver) -> None:
        """Something was written: tell the replica when it was most of what waited."""
        if self.is_full and self.outbox.bytes_waiting < CLIENT_BYTES_MAX // 2:
            self.is_full = False
            driver.feed(ClientStreamDrained(self.set_name, self.number))


class LocalStream:
    """A client stream that ends in this process; from `SessionsService.open_local` to `close`."""

    def __init__(self, driver: Driver, streams: dict[int, _ClientStream], stream: _ClientStream) -> None:
        self._driver = driver
        self._streams = streams
        self._stream = stream
        self._right: ServingRight | None = None
        """Under which the last of what was heard was said; None: nothing needed one."""

    @property
    def may_be_told(self) -> bool:
        """Whether what was heard may still be passed on: asked right before that is done (R6)."""
        return self._right is None or boottime_ms() < self._right.until_ms

    def say(self, *messages: Heard) -> None:
        self._driver.feed(ClientSaid(self._stream.set_name, self._stream.number, messages))

    async def hear(self) -> list[Told]:
        """Waits for messages; none when the replica closed the stream, or this process may not serve any more."""
        waiting = await self._stream.outbox.take(WRITE_BYTES_MAX)
        self._stream.drained(self._driver)
        now_ms = boottime_ms()
        heard = [message for message, right in waiting if right is None or now_ms < right.until_ms]
        if len(heard) < len(waiting):
            # Whoever waits for what was dropped is not to wait for ever.
            self._stream.outbox.abort()
        for _, right in waiting:
            self._right = right or self._right
        return heard

    def close(self) -> None:
        if self._streams.pop(self._stream.number, None) is not None:
            self._stream.outbox.abort()
            self._driver.feed(ClientStreamClosed(self._stream.set_name, self._stream.number))


class SessionsService:
    """Lives as long as the process; hosted by its gRPC server, driven by effects from the driver.

    `candidates` names the addresses at which a set may be served, the primary's first.
    """

    def __init__(
        self,
        driver: Driver,
        rights: ServingRights,
        candidates: Callable[[SetName], Sequence[str]],
        stall_seconds: float = CLIENT_STALL_SECONDS,
        streams_max: int = CLIENT_STREAMS_MAX,
    ) -> None:
        self._driver = driver
        self._rights = rights
        self._candidates = candidates
        self._stall_seconds = stall_seconds
        self._streams_max = streams_max
        self._refusals = LimitLog(_log)
        self._long = LongRequests(driver)
        self._streams: dict[int, _ClientStream] = {}
        self._is_watching = False
        driver.on(TellClient, self._tell)
        driver.on(CloseClientStream, self._close)
        driver.on(EndClientStreams, self._end_all)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service("Sessions", {"Open": stream_stream(self._open)})

    def open_local(self, set_name: SetName) -> LocalStream:
        """A stream of this process's own, for asking a replica what clients can ask it. The caller closes it."""
        stream = _ClientStream(set_name, self._driver.new_stream())
        self._streams[stream.number] = stream
        return LocalStream(self._driver, self._streams, stream)

    @property
    def streams(self) -> int:
        """Open streams of clients."""
        return len(self._streams)

    # Effects

    def _tell(self, effect: TellClient) -> None:
        stream = self._streams.get(effect.stream)
        if stream is None:
            return
        right = self._rights.of(effect.set_name) if effect.serve_until_ms else None
        stream.outbox.put((effect.message, right), _message_bytes(effect.message), wakes=stream.write is None)
        if stream.write is not None:
            self._driver.write_later(stream.outbox, stream.write)
        if not stream.is_full and stream.outbox.bytes_waiting >= CLIENT_BYTES_MAX:
            stream.is_full = True
            self._driver.feed(ClientStreamFull(effect.set_name, effect.stream))

    def _close(self, effect: CloseClientStream) -> None:
        stream = self._streams.get(effect.stream)
        if stream is not None:
            stream.outbox.finish()

    def _end_all(self, effect: EndClientStreams) -> None:
        for stream in self._streams.values():
            if stream.set_name == effect.set_name:
                stream.outbox.finish()

    # The call

    async def _open(self, context: Context) -> None:
        data = await read(context)
        if data is None:
            return
        set_name, messages = await self._long.decode(RequestDecoding(data))
        if not messages or not isinstance(messages[0], AttachSession):
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "the first message of a session stream is attach")
        if self._driver.core(set_name) is None:
            await self._refuse(context, set_name)
            return
        if len(self._streams) >= self._streams_max:
            text = f"{len(self._streams)} streams of clients are open"
            self._refusals.refused("client_streams_max", f"set={set_name} {text}")
            raise Rejected(ErrorCode.UNAVAILABLE, text, limit=self._streams_max)
        unheard = self._long.unheard(set_name)
        unheard.bytes += len(data)
        stream = _ClientStream(set_name, self._driver.new_stream(), unheard=unheard, context=context)
        stream.write = partial(stream.outbox.write_now, WRITE_BYTES_MAX, partial(self._write_now, stream))
        self._streams[stream.number] = stream
        if not self._is_watching:
            self._watch_later()
        reading = asyncio.ensure_future(self._read(context, stream, (set_name, messages)))
        try:
            await self._write(stream)
            if reading.done():
                reading.result()
        finally:
            del self._streams[stream.number]
            stream.outbox.abort()
            self._driver.feed(ClientStreamClosed(set_name, stream.number))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, context: Context, stream: _ClientStream, first: Request) -> None:
        def take(data: bytes | memoryview) -> bool:
            if stream.outbox.is_finished:
                return False
            if len(data) <= SHORT_BYTES_MAX:
                request = decode_request(data)
            else:
                decoding = RequestDecoding(data)
                decoding.go_on()
                if decoding.decoded is None:
                    stream.unsaid = decoding
                    return False
                request = decoding.decoded
            _check(request, stream.set_name)
            self._say_short(stream, request)
            unheard = stream.unheard
            unheard.bytes += len(data)
            is_little = stream.said < SAID_MAX and unheard.bytes < UNHEARD_BYTES_MAX
            return is_little and stream.outbox.bytes_waiting < CLIENT_BYTES_MAX

        try:
            self._say_short(stream, first)
            if stream.unsaid is not None:
                await self._say(stream)
            while await hear(context, take) and not stream.outbox.is_finished:
                if stream.unsaid is not None:
                    await self._say(stream)
                elif stream.said >= SAID_MAX or stream.unheard.bytes >= UNHEARD_BYTES_MAX:
                    await self._long.wait(stream.set_name)
                    stream.said = 0
                await stream.outbox.wait_below(CLIENT_BYTES_MAX)
        finally:
            stream.outbox.finish()

    def _say_short(self, stream: _ClientStream, request: Request) -> None:
        """At once, unless it is long."""
        messages = request[1]
        stream.said += len(messages)
        if len(messages) > SAID_MAX:
            stream.unsaid = request
        else:
            self._driver.feed(ClientSaid(stream.set_name, stream.number, messages))

    async def _say(self, stream: _ClientStream) -> None:
        """A long request that was read."""
        unsaid, stream.unsaid = stream.unsaid, None
        if isinstance(unsaid, RequestDecoding):
            unsaid = await self._long.decode(unsaid)
            _check(unsaid, stream.set_name)
        assert unsaid is not None, "there is something to say"
        await self._long.say(stream.set_name, stream.number, unsaid[1])
        stream.said = 0

    def _write_now(self, stream: _ClientStream, waiting: list[_Waiting]) -> bool:
        data = self._encode(stream.set_name, waiting)
        if not _may_be_said(waiting) or not stream.context.write_now(data):
            return False
        stream.drained(self._driver)
        return True

    async def _write(self, stream: _ClientStream) -> None:
        set_name = stream.set_name
        while waiting := await stream.outbox.take(WRITE_BYTES_MAX):
            data = self._encode(set_name, waiting)
            if _may_be_said(waiting):
                await self._put(stream, data)
                stream.drained(self._driver)
                continue
            unbound = [(message, right) for message, right in waiting if right is None]
            if unbound:
                await self._put(stream, self._encode(set_name, unbound))
            text = f"set={set_name} stream={stream.number}"
            self._refusals.seldom("lease_ended_before_write", text, level=logging.INFO)
            return

    def _encode(self, set_name: SetName, waiting: Sequence[_Waiting]) -> Serialized:
        messages = [self._addressed(set_name, message) for message, _ in waiting]
        return encode_response(set_name, messages)

    async def _put(self, stream: _ClientStream, data: Serialized) -> None:
        """One write; raises `Rejected` UNAVAILABLE when the client takes nothing for too long."""
        loop = asyncio.get_running_loop()
        stream.writing_since, stream.writer = loop.time(), asyncio.current_task()
        try:
            await stream.context.write(data)
        except asyncio.CancelledError:
            if not stream.is_stalled or stream.writer is None:
                raise
            stream.writer.uncancel()
            raise Rejected(
                ErrorCode.UNAVAILABLE,
                f"the client read nothing for {self._stall_seconds:g} s",
                set_name=stream.set_name,
                stream=stream.number,
            ) from None
        finally:
            stream.writer = None

    def _watch_later(self) -> None:
        """One timer for all streams: a time-out for each write would cost more than the write."""
        self._is_watching = True
        asyncio.get_running_loop().call_later(self._stall_seconds / 4, self._watch)

    def _watch(self) -> None:
        """What gets on slowly, in either direction, is no silence."""
        self._is_watching = False
        for stream in list(self._streams.values()):
            if stream.context is None:
                continue
            before, stream.received_bytes = stream.received_bytes, stream.context.received_bytes
            if stream.received_bytes - before >= MOVED_BYTES:
                self._driver.feed(ClientSaid(stream.set_name, stream.number, ()))
            if stream.writer is not None:
                self._watch_writer(stream, stream.writer)
        if self._streams:
            self._watch_later()

    def _watch_writer(self, stream: _ClientStream, writer: "asyncio.Task[object]") -> None:
        now = asyncio.get_running_loop().time()
        if stream.context.has_moved():
            stream.writing_since = now
        elif now - stream.writing_since >= self._stall_seconds:
            waiting = stream.outbox.bytes_waiting
            text = f"set={stream.set_name} stream={stream.number} bytes={waiting}"
            self._refusals.seldom("client_stalled", text)
            stream.is_stalled = True
            writer.cancel()

    # Inside

    async def _refuse(self, call: Any, set_name: SetName) -> None:
        candidates = tuple(self._candidates(set_name))
        code = ErrorCode.NOT_PRIMARY if candidates else ErrorCode.UNKNOWN_SET
        text = f"this broker has no replica of {set_name[:80]!r}"
        refused = AttachRefused(Epoch(0), LogIndex(0), code, text, candidates)
        await call.write(encode_response(set_name, [refused]))

    def _addressed(self, set_name: SetName, message: Told) -> AnyServerMessage:
        """With the addresses of those who may serve the set, where the replica, which knows none, left them empty."""
        assert not isinstance(message, BrokerAnswer), f"{message!r} for a client"
        if not isinstance(message, SessionAttached | AttachRefused | CandidatesChanged):
            return message
        return (
            message if message.candidates else replace(message, candidates=tuple(self._candidates(set_name)))
        )


def _check(request: Request, set_name: SetName) -> None:
    """Raises `Rejected` for what is said behind the first request of a stream of that set and may not be."""
    said_of, messages = request
    if said_of != set_name:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"a stream of set {set_name!r} speaks of {said_of[:80]!r}")
    for message in messages:
        if isinstance(message, AttachSession):
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "a session stream attaches once")


def _may_be_said(waiting: Sequence[_Waiting]) -> bool:
    """Asked right before the write (R6)."""
    ends_ms = [right.until_ms for _, right in waiting if right is not None]
    return not ends_ms or boottime_ms() < min(ends_ms)


def _message_bytes(message: Told) -> int:
    """About how many bytes a message has: what an outbox counts."""
    match message:
        case Answers():
            return 16 * len(message.answers)
        case Deliveries() | BrowseAnswer():
            return sum([len(one.body) + len(one.properties) + 16 for one in message.messages])
        case _:
            return 64
