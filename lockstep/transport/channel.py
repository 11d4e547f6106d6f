"""A gRPC client on the event loop: `grpc.aio.Channel`, as far as it is used.

Law: a channel has one connection at a time, made when it is first used and again when a call wants one. A call is sent on one
connection, once: what became of it when that is lost is for the caller to find out.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
import grpc.aio
from h2.errors import ErrorCodes
from h2.exceptions import NoAvailableStreamIDError

from lockstep.transport.connection import Connection
from lockstep.transport.errors import ConnectionEnded
from lockstep.transport.metadata import (
    Header,
    Pairs,
    decode_pairs,
    decode_status,
    encode_pairs,
    encode_timeout,
    foreign_status,
)
from lockstep.transport.stream import Stream

PAUSE_SECONDS = 0.05
"""Between two attempts to connect, at first; calls that come meanwhile wait for the next one."""
PAUSE_SECONDS_MAX = 0.2
CONNECT_SECONDS = 20.0
"""So long an attempt may take. One given up sooner than a busy server, or a long way, lets it succeed is made for ever."""

Serializer = Callable[[Any], bytes] | None
Deserializer = Callable[[bytes], Any] | None


class ClientCall:
    """One call, from its creation; the interface of `grpc.aio.Call`, as far as it is used."""

    def __init__(
        self,
        channel: "Channel",
        path: str,
        serializer: Serializer,
        deserializer: Deserializer,
        timeout: float | None = None,
        metadata: Pairs = (),
        wait_for_ready: bool = False,
    ) -> None:
        self._serialize, self._deserialize = serializer, deserializer
        self.waits_for_ready = wait_for_ready
        self._headers: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", channel.authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *encode_pairs(metadata),
        ]
        self._channel = channel
        self._stream: _ClientStream | None = None
        self._status: tuple[grpc.StatusCode, str, Pairs] | None = None
        self._initial: Pairs = ()
        self._is_cancelled = False
        self._waiting: list[asyncio.Future[None]] = []
        """Those who wait for the stream to be open, or for the end."""
        self._deadline: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._headers.append((b"grpc-timeout", encode_timeout(timeout)))
            self._deadline = asyncio.get_running_loop().call_later(timeout, self._expire)
        channel.begin(self)

    # --- for its user ---

    async def read(self) -> Any:
        """The next message; `grpc.aio.EOF` at the end. Raises `AioRpcError`, and `CancelledError` behind `cancel`."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        try:
            await self._open()
            data = await self._stream.next_message() if self._stream is not None else None
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is not None:
            return data if self._deserialize is None else self._deserialize(data)
        await self._ended()
        self._raise_for_status()
        return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        """One message. Raises `AioRpcError`, and `InvalidStateError` when the other side has ended the call."""
        data = message if self._serialize is None else self._serialize(message)
        await self._open()
        if self._stream is not None and self._status is None:
            try:
                await self._stream.write(data)
                return
            except ConnectionEnded:
                await self._ended()
        self._raise_for_status()
        raise asyncio.InvalidStateError("the call is over")

    async def done_writing(self) -> None:
        """There is nothing more to write."""
        await self._open()
        if self._stream is not None and self._status is None:
            self._stream.connection.end_messages(self._stream)

    def cancel(self) -> bool:
        """Gives the call up; answers whether it was not over."""
        return self._give_up(grpc.StatusCode.CANCELLED, "the call was cancelled", is_cancelled=True)

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self._is_cancelled

    async def code(self) -> grpc.StatusCode:
        """The status, once the call is over; so are the next two."""
        return (await self._ended())[0]

    async def details(self) -> str:
        return (await self._ended())[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self._ended())[2])

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    # --- for the channel ---

    def open(self, connection: Connection) -> None:
        """Sends its headers on this connection."""
        if self._status is not None:
            return
        try:
            number = connection.open_call(self._headers)
        except NoAvailableStreamIDError:
            connection.leave()
            self.end(grpc.StatusCode.UNAVAILABLE, "the connection has had all its calls")
            return
        self._stream = _ClientStream(connection, number, self._channel.message_bytes_max, self)
        connection.streams[number] = self._stream
        self._wake()

    def end(self, code: grpc.StatusCode, details: str, trailing: Pairs = ()) -> None:
        """It is over."""
        if self._status is None:
            self._status = code, details, trailing
            if self._deadline is not None:
                self._deadline.cancel()
            self._wake()
            if self._stream is not None:
                # Behind what ends it, which makes room.
                asyncio.get_running_loop().call_soon(self._channel.open_waiting)

    def miscounted(self) -> NoReturn:
        """It should have one answer, and has another number. Raises `AioRpcError`."""
        self.cancel()
        self._is_cancelled = False
        self._status = grpc.StatusCode.INTERNAL, "the call has one answer, and another number came", ()
        self._raise_for_status()
        raise AssertionError("its status is an error")

    def started(self, headers: list[Header]) -> None:
        """The initial metadata came."""
        self._initial = decode_pairs(headers)

    # --- inside ---

    def _expire(self) -> None:
        self._give_up(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline is over")

    def _give_up(self, code: grpc.StatusCode, details: str, is_cancelled: bool = False) -> bool:
        if self._status is not None:
            return False
        self._is_cancelled = is_cancelled
        self.end(code, details)
        if self._stream is not None:
            self._stream.refuse(code, details)
        return True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def _open(self) -> None:
        while self._stream is None and self._status is None:
            await self._wait()

    async def _ended(self) -> tuple[grpc.StatusCode, str, Pairs]:
        while self._status is None:
            await self._wait()
        return self._status

    def _raise_for_status(self) -> None:
        assert self._status is not None
        code, details, trailing = self._status
        if self._is_cancelled:
            raise asyncio.CancelledError
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(*self._initial), grpc.aio.Metadata(*trailing), details, details
            )


class _ClientStream(Stream):
    """The call's messages, and what ends it."""

    def __init__(self, connection: Connection, number: int, message_bytes_max: int, call: ClientCall) -> None:
        super().__init__(connection, number, message_bytes_max)
        self._call = call
        self._trailers: tuple[grpc.StatusCode, str, Pairs] | None = None
        self._has_begun = False

    def hear_headers(self, headers: list[Header]) -> None:
        status = decode_status(headers)
        if status is not None:
            self._trailers = (*status, decode_pairs(headers))
        elif not self._has_begun and (foreign := foreign_status(headers)) is not None:
            self._trailers = (*foreign, ())
        if not self._has_begun:
            self._call.started(headers)
        self._has_begun = True

    def hear_out(self) -> None:
        super().hear_out()
        code, details, trailing = self._trailers or (
            grpc.StatusCode.UNKNOWN,
            "the call ended without a status",
            (),
        )
        self._call.end(code, details, trailing)
        # Nothing more is said, whether the server would listen or not.
        self.connection.drop(self, ErrorCodes.NO_ERROR)
        super().fail(ConnectionEnded(code, details))

    def fail(self, failure: ConnectionEnded) -> None:
        # A server that has said all there is may close the connection right behind it.
        self._call.end(*(self._trailers or (failure.code, failure.details, ())))
        super().fail(failure)

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        self.connection.drop(self, ErrorCodes.CANCEL)
        self.fail(ConnectionEnded(code, details))


class _UnaryCall(Awaitable[Any]):
    """A call with one answer: to be awaited for it."""

    def __init__(self, call: ClientCall, task: "asyncio.Task[Any]") -> None:
        self._call, self._task = call, task

    def __await__(self) -> Generator[Any, None, Any]:
        return self._task.__await__()

    def cancel(self) -> bool:
        """As of `ClientCall`; so are all others."""
        return self._call.cancel()

    def done(self) -> bool:
        return self._call.done()

    def cancelled(self) -> bool:
        return self._call.cancelled()

    async def code(self) -> grpc.StatusCode:
        await asyncio.wait({self._task})
        return await self._call.code()

    async def details(self) -> str:
        await asyncio.wait({self._task})
        return await self._call.details()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        await asyncio.wait({self._task})
        return await self._call.trailing_metadata()


class Channel:
    """To one address, for as long as its owner keeps it; used from one event loop."""

    def __init__(self, address: str, message_bytes_max: int) -> None:
        """`address`: host:port, or unix:path. `message_bytes_max`: of one message of an answer."""
        self._address = address
        self.message_bytes_max = message_bytes_max
        self.authority = b"localhost" if address.startswith("unix:") else address.encode()
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        """With those that the server leaves."""
        self._waiting: list[ClientCall] = []
        """Calls that wait for a connection."""
        self._connecting: asyncio.Task[None] | None = None
        self._pause_seconds = 0.0
        self._is_closed = False

    # --- as grpc.aio.Channel ---

    def unary_unary(
        self,
        path: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **_: object,
    ) -> Any:
        """A method with one request and one answer."""

        def call(request: Any, **options: Any) -> _UnaryCall:
            begun = ClientCall(self, path, request_serializer, response_deserializer, **options)
            return _UnaryCall(begun, asyncio.ensure_future(_one_answer(begun, request)))

        return call

    def unary_stream(
        self,
        path: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **_: object,
    ) -> Any:
        """A method with one request and many answers."""

        def call(request: Any, **options: Any) -> ClientCall:
            begun = ClientCall(self, path, request_serializer, response_deserializer, **options)
            sending = asyncio.ensure_future(_send_one(begun, request))
            sending.add_done_callback(_forget_failure)
            return begun

        return call

    def stream_unary(
        self,
        path: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **_: object,
    ) -> Any:
        """A method with many requests and one answer, for which the call is awaited."""

        def call(**options: Any) -> "_StreamUnaryCall":
            return _StreamUnaryCall(self, path, request_serializer, response_deserializer, **options)

        return call

    def stream_stream(
        self,
        path: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **_: object,
    ) -> Any:
        """A method with many of both."""

        def call(**options: Any) -> ClientCall:
            return ClientCall(self, path, request_serializer, response_deserializer, **options)

        return call

    async def channel_ready(self) -> None:
        """Returns when it is connected; tries for ever."""
        while self._connection is None or self._connection.is_leaving:
            await asyncio.wait({self._begin_connecting()})

    async def close(self, _grace: float | None = None) -> None:
        """Ends its connection, and with it all calls."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        for connection in list(self._connections):
            for stream in list(connection.streams.values()):
                stream.refuse(grpc.StatusCode.CANCELLED, "the channel is closed")
            connection.close("the channel is closed")
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.end(grpc.StatusCode.CANCELLED, "the channel is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- for its calls ---

    def begin(self, call: ClientCall) -> None:
        """Opens a call, now or when there is a connection."""
        if self._is_closed:
            raise grpc.aio.UsageError("the channel is closed")
        self._waiting.append(call)
        self.open_waiting()

    # --- inside ---

    def _begin_connecting(self) -> "asyncio.Task[None]":
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._keep_connecting())
        return self._connecting

    async def _keep_connecting(self) -> None:
        """Once, and until nobody waits."""
        try:
            await self._connect()
            while self._waiting and (self._connection is None or self._connection.is_leaving):
                await self._connect()
        finally:
            self._connecting = None

    async def _connect(self) -> None:
        """One attempt, behind the pause that the last one left; opens or fails the calls that wait."""
        await asyncio.sleep(self._pause_seconds)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._made()
        except (OSError, TimeoutError, ValueError) as error:
            self._pause_seconds = min(max(2 * self._pause_seconds, PAUSE_SECONDS), PAUSE_SECONDS_MAX)
            self._fail(f"failed to connect to {self._address}: {error or type(error).__name__}")
            return
        self._pause_seconds = 0.0
        self._connection = connection
        self._connections.add(connection)
        self.open_waiting()

    async def _made(self) -> Connection:
        """A connection whose other side has answered. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def lost(connection: Connection, reason: str) -> None:
            if not ready.done():
                ready.set_exception(ConnectionResetError(reason))
            self._connections.discard(connection)
            if self._connection is connection:
                self._connection = None

        def answered(_: Connection) -> None:
            if not ready.done():
                ready.set_result(None)

        connection = Connection(None, answered, lost)
        if self._address.startswith("unix:"):
            await loop.create_unix_connection(lambda: connection, self._address.removeprefix("unix:"))
        else:
            host, _, port = self._address.rpartition(":")
            await loop.create_connection(lambda: connection, host.strip("[]"), int(port))
        try:
            await ready
            if connection.is_lost:
                raise ConnectionResetError("lost at once")
        except BaseException:
            connection.close("it was given up")
            raise
        return connection

    def _fail(self, reason: str) -> None:
        """Calls that wait, but those that want to wait for ever."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if call.waits_for_ready and not call.done():
                self._waiting.append(call)
            else:
                call.end(grpc.StatusCode.UNAVAILABLE, reason)

    def open_waiting(self) -> None:
        """Opens the calls that wait, as far as the connection has room for them."""
        connection = self._connection
        if connection is None or connection.is_leaving:
            if self._waiting:
                self._begin_connecting()
            return
        while self._waiting and connection.has_room:
            self._waiting.pop(0).open(connection)


class _StreamUnaryCall(ClientCall):
    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            await self.done_writing()
            return await _answer_of(self)
        finally:
            self.cancel()


async def _send_one(call: ClientCall, request: Any) -> None:
    await call.write(request)
    await call.done_writing()


async def _answer_of(call: ClientCall) -> Any:
    answer = await call.read()
    if answer is grpc.aio.EOF or await call.read() is not grpc.aio.EOF:
        text = "the call has one answer, and another number came"
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), text, text
        )
    return answer


async def _one_answer(call: ClientCall, request: Any) -> Any:
    try:
        await _send_one(call, request)
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        pass  # What the server said explains it.
    try:
        return await _answer_of(call)
    finally:
        call.cancel()


def _forget_failure(sending: "asyncio.Future[None]") -> None:
    """Whoever reads the answers hears of it."""
    if not sending.cancelled():
        sending.exception()
