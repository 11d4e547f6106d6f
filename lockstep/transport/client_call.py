"""Calls of a client: the interface of `grpc.aio.Call` and its kind, as far as it is used.

Law: a call is sent on one connection, once, and on another one only where the server says that it has done nothing for it. It has
one status, the first that is known of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NoReturn, Protocol

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
from lockstep.transport.stream import Handler, Stream, Written, size_of

REPEATS_MAX = 3
"""Of one call, by servers that go away."""

Serializer = Callable[[Any], Written] | None
Deserializer = Callable[[bytes], Any] | None


class CallOpener(Protocol):
    """What a call needs of its channel."""

    authority: bytes
    message_bytes_max: int

    def begin(self, call: "ClientCall") -> None:
        """Opens a call, now or when there is a connection."""

    def forget(self, call: "ClientCall") -> None:
        """It is over, and was not opened."""

    def open_waiting(self) -> None:
        """Opens the calls that wait, as far as the connection has room for them."""


class ClientCall:
    """One call, from its creation; the interface of `grpc.aio.Call`, as far as it is used."""

    def __init__(
        self,
        channel: CallOpener,
        path: str,
        serializer: Serializer,
        deserializer: Deserializer,
        timeout: float | None = None,
        metadata: Pairs = (),
        wait_for_ready: bool = False,
        request: Any = None,
    ) -> None:
        """`request`: of a method that has one; of others their user writes them. `timeout`: seconds."""
        self._serialize, self._deserialize = serializer, deserializer
        self._request: Written | None = (
            request if serializer is None or request is None else serializer(request)
        )
        self._repeats_left = REPEATS_MAX if request is not None else 0
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
        self._sending: asyncio.Future[None] | None = None
        """Of a request that has to wait for room."""
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
            data = await self._next_message()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is not None:
            return data if self._deserialize is None else self._deserialize(data)
        await self._ended()
        self._raise_for_status()
        return grpc.aio.EOF

    async def hear(self, handle: Handler) -> bool:
        """As `Stream.hear`, with the errors of `read`. Messages are bytes."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        try:
            while True:
                await self._open()
                stream = self._stream
                if stream is not None and await stream.hear(handle):
                    return True
                if self._status is not None or stream is self._stream:
                    break
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._ended()
        self._raise_for_status()
        return False

    def write_now(self, data: Written) -> bool:
        """As `Stream.write_now`."""
        return self._stream is not None and self._status is None and self._stream.write_now(data)

    def has_moved(self) -> bool:
        """As `Stream.has_moved`."""
        return self._stream is not None and self._status is None and self._stream.has_moved()

    async def write(self, message: Any) -> None:
        """One message. Raises `AioRpcError`, and `InvalidStateError` when one of both sides has ended what this one says.

        Who is cancelled meanwhile cancels the call.
        """
        data = message if self._serialize is None else self._serialize(message)
        await self._open()
        if self._stream is not None and self._status is None:
            if self._stream.is_said_out:
                raise asyncio.InvalidStateError("the call has no more messages: done_writing was called")
            try:
                await self._stream.write(data)
                return
            except ConnectionEnded:
                await self._ended()
            except asyncio.CancelledError:
                self.cancel()
                raise
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
            # It has had all its calls: the next one has this.
            connection.leave()
            connection.close_when_left()
            self._channel.begin(self)
            return
        self._stream = _ClientStream(connection, number, self._channel.message_bytes_max, self)
        connection.streams[number] = self._stream
        if self._request is not None:
            if not connection.is_paused and connection.send_message(
                number, self._request, size_of(self._request)
            ):
                connection.end_messages(self._stream)
            else:
                self._sending = asyncio.ensure_future(self._send(self._stream, self._request))
        self._wake()

    async def _send(self, stream: Stream, request: Written) -> None:
        with contextlib.suppress(ConnectionEnded):
            await stream.write(request)
            stream.connection.end_messages(stream)

    def repeat(self) -> bool:
        """The server has done nothing for it: answers whether it is begun anew."""
        if self._status is not None or not self._repeats_left:
            return False
        self._repeats_left -= 1
        self._stream = None
        asyncio.get_running_loop().call_soon(self._begin_anew)
        return True

    def _begin_anew(self) -> None:
        if self._status is not None:
            return
        try:
            self._channel.begin(self)
        except grpc.aio.UsageError as error:
            self.end(grpc.StatusCode.CANCELLED, str(error))

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
            else:
                self._channel.forget(self)

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

    async def _next_message(self) -> bytes | None:
        while True:
            await self._open()
            stream = self._stream
            data = await stream.next_message() if stream is not None else None
            if data is not None or self._status is not None or stream is self._stream:
                return data

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
        if self.is_cut_short and code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.INTERNAL, "the last message was cut short"
        self._call.end(code, details, trailing)
        # Nothing more is said, whether the server would listen or not.
        self.connection.drop(self, ErrorCodes.NO_ERROR)
        super().fail(ConnectionEnded(code, details))

    def fail(self, failure: ConnectionEnded) -> None:
        if not (failure.was_refused and not self._has_begun and self._call.repeat()):
            # A server that has said all there is may close the connection right behind it.
            self._call.end(*(self._trailers or (failure.code, failure.details, ())))
        super().fail(failure)

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        self.connection.drop(self, ErrorCodes.CANCEL)
        self.fail(ConnectionEnded(code, details))


class UnaryCall(Awaitable[Any]):
    """A call with one answer: to be awaited for it."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._task = asyncio.ensure_future(_one_answer(call))
        self._task.add_done_callback(_forget_failure)

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


class StreamUnaryCall(ClientCall):
    """A call with many requests and one answer: to be awaited for it, which ends the requests."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            await self.done_writing()
            return await _answer_of(self)
        finally:
            self.cancel()


async def _answer_of(call: ClientCall) -> Any:
    answer = await call.read()
    if answer is grpc.aio.EOF or await call.read() is not grpc.aio.EOF:
        call.miscounted()
    return answer


async def _one_answer(call: ClientCall) -> Any:
    try:
        return await _answer_of(call)
    finally:
        call.cancel()


def _forget_failure(done: "asyncio.Future[Any]") -> None:
    """Whoever wants to know of it asks the call."""
    if not done.cancelled():
        done.exception()
