"""A gRPC server on the event loop: hosts what `grpc.method_handlers_generic_handler` makes, as `grpc.aio.Server` does.

Law: a call that its caller gave up, or whose connection is lost, is cancelled at once. Nothing that a caller sends ends the
process.
"""

import asyncio
import contextlib
import errno
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio
from h2.errors import ErrorCodes

from lockstep.transport.connection import Connection
from lockstep.transport.errors import ConnectionEnded
from lockstep.transport.inflating import Deflated, Inflating
from lockstep.transport.intake import Intake, Refused
from lockstep.transport.metadata import (
    Header,
    Pairs,
    decode_pairs,
    decode_timeout,
    encode_pairs,
    encode_status,
    is_request,
)
from lockstep.transport.stream import Handler, Heard, Stream

_HEADERS: list[Header] = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip"),
]
_KINDS = {b"application/grpc", b"application/grpc+proto"}
"""Content types of requests, without parameters."""
_IDENTITY, _GZIP = b"identity", b"gzip"
"""Encodings of messages."""
Failed = Callable[[Exception], None]
_UNIX = "unix:"
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""Why an address cannot be had that a name has, and this machine has not: `::1`, where IPv6 is off."""
BACKLOG = 1024
"""Connections that may wait to be accepted."""
LEAVING_SECONDS = 0.1
"""So long clients have to close their connections, once they were told to."""


def as_it_came(data: Heard) -> Heard:
    """The deserializer of a method whose handler takes messages as they came: a big one is not copied for it."""
    return data


class CallDetails(NamedTuple):
    """What a handler is found by."""

    method: str
    invocation_metadata: Pairs


class ServerCall(Stream):
    """One call, and the context that its handler gets: `grpc.aio.ServicerContext`, as far as it is used."""

    def __init__(self, connection: Connection, number: int, message_bytes_max: int, server: "Server") -> None:
        super().__init__(connection, number, message_bytes_max)
        self._server = server
        self._headers: list[Header] = []
        """As they came: fields that the table of the connection's decoder names again are there once, for all calls."""
        self._serialize: Any = None
        self._deserialize: Any = None
        self._may_say = False
        self._stays = False
        """Its method is a stream: it is kept from its first message on."""
        self._has_request = False
        """The only one that its method has."""
        self._deadline: asyncio.TimerHandle | None = None
        self._aborted: tuple[grpc.StatusCode, str, Pairs] | None = None
        self._task: asyncio.Task[None] | None = None

    # --- the context ---

    def invocation_metadata(self) -> Pairs:
        """The caller's."""
        return decode_pairs(self._headers)

    async def read(self) -> Any:
        """The next message, `grpc.aio.EOF` at the end."""
        is_as_it_came = self._deserialize is as_it_came
        data = await (self.next_heard() if is_as_it_came else self.next_message())
        if data is None:
            if self.failure is not None:
                raise asyncio.CancelledError
            return grpc.aio.EOF
        if self._stays and not self.is_kept:
            self.connection.keep(self)
        return data if self._deserialize is None else self._deserialize(data)

    async def hear(self, handle: Handler) -> bool:
        """As `Stream.hear`; raises `asyncio.CancelledError` when the call is given up. Messages are bytes."""
        if self._may_be_compressed:
            while (data := await self.next_message()) is not None:
                self.connection.keep(self)
                if not handle(data):
                    return True
            if self.failure is not None:
                raise asyncio.CancelledError
            return False
        if not self.is_kept:
            first = await self.next_message()
            if first is not None:
                self.connection.keep(self)
                if not handle(first):
                    return True
        has_more = await super().hear(handle)
        if not has_more and self.failure is not None:
            raise asyncio.CancelledError
        return has_more

    async def write(self, message: Any) -> None:
        """One message of the answer. Raises `asyncio.CancelledError` when the call is over."""
        data = message if self._serialize is None else self._serialize(message)
        if not self._may_say and not self.done():
            self._may_say = True
            self.connection.send_headers(self.number, _HEADERS, False)
        try:
            await super().write(data)
        except ConnectionEnded as error:
            raise asyncio.CancelledError from error

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[Any] = ()
    ) -> NoReturn:
        """Ends the call with an error, by raising one."""
        trailing = tuple(trailing_metadata)
        encode_pairs(trailing)  # What cannot be said fails here, where the handler hears of it.
        self._aborted = code, details, trailing
        raise grpc.aio.AbortError

    def done(self) -> bool:
        """Whether nothing more can be said."""
        return self.failure is not None

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    # --- the call ---

    def hear_headers(self, headers: list[Header]) -> None:
        if self._task is not None:
            return  # Trailers of a request: gRPC has none.
        if not is_request(headers):
            self.connection.drop(self, ErrorCodes.PROTOCOL_ERROR)
            super().fail(ConnectionEnded(grpc.StatusCode.INTERNAL, "its headers are none of a request"))
            return
        found, self._headers = dict(headers), headers
        kind = found.get(b"content-type", b"").partition(b";")[0].rstrip()
        if found.get(b":method") != b"POST" or kind not in _KINDS:
            if kind.startswith(b"application/grpc+"):
                self._end(
                    grpc.StatusCode.UNIMPLEMENTED, "messages are protobuf: no other content subtype is served"
                )
            else:
                self._leave([(b":status", b"415")])
            return
        encoding = found.get(b"grpc-encoding", _IDENTITY)
        if encoding != _IDENTITY:
            if encoding != _GZIP:
                self._end(
                    grpc.StatusCode.UNIMPLEMENTED, "messages may be compressed by gzip, and not otherwise"
                )
                return
            self._may_be_compressed = True
        path = found.get(b":path", b"").decode("latin-1")
        self._heard_bytes_max = self._server.request_limit(path)
        handler = self._server.handler_of(CallDetails(path, self.invocation_metadata()))
        self._task = self._server.run(self._guard(handler))
        seconds = decode_timeout(found.get(b"grpc-timeout", b""))
        if seconds is not None:
            text = "the deadline is over"
            self._deadline = asyncio.get_running_loop().call_later(
                seconds, self.refuse, grpc.StatusCode.DEADLINE_EXCEEDED, text
            )

    def _wake(self) -> None:
        if self._has_request and self.has_unread:
            # Nobody reads it: as many of them as a window has would be kept for as long as the call lasts.
            self.refuse(grpc.StatusCode.INTERNAL, "the method has one request, and another message came")
        super()._wake()

    def hear_out(self) -> None:
        super().hear_out()
        if self.is_cut_short:
            self.refuse(grpc.StatusCode.INTERNAL, "the last message was cut short")

    async def _guard(self, handler: "grpc.RpcMethodHandler[Any, Any] | None") -> None:
        try:
            if handler is None:
                self._end(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
                return
            await self._run(handler)
            self._end(grpc.StatusCode.OK, "")
        except grpc.aio.AbortError:
            assert self._aborted is not None
            self._end(*self._aborted)
        except asyncio.CancelledError:
            self._end(grpc.StatusCode.UNAVAILABLE, "the server gave the call up")
        except Exception as error:
            self._server.failed(error)
            self._end(grpc.StatusCode.UNKNOWN, f"{type(error).__name__} in the method's handler")

    async def _run(self, handler: "grpc.RpcMethodHandler[Any, Any]") -> None:
        self._deserialize, self._serialize = handler.request_deserializer, handler.response_serializer
        self._stays = handler.request_streaming or handler.response_streaming
        call: Any = (
            (handler.stream_stream if handler.response_streaming else handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_stream if handler.response_streaming else handler.unary_unary)
        )
        request: Any = self
        if not handler.request_streaming:
            request = await self.read()
            if request is grpc.aio.EOF:
                await self.abort(grpc.StatusCode.INTERNAL, "the request is missing")
            self._has_request = True
            self._wake()
        if inspect.isasyncgenfunction(call):
            async for message in call(request, self):
                await self.write(message)
            return
        answer = await call(request, self)
        if not handler.response_streaming:
            await self.write(answer)

    def _end(
        self, code: grpc.StatusCode, details: str, trailing: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        if not self.done():
            trailers = encode_status(code, details, trailing)
            self._leave(trailers if self._may_say else _HEADERS + trailers)

    async def _inflated(self, data: Deflated) -> bytes:
        try:
            return await self._server.inflating.inflate(data, self._heard_bytes_max)
        except ConnectionEnded as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.connection.refused("inflated_bytes_max", error.details)
            self.refuse(error.code, error.details)
            raise asyncio.CancelledError from error

    def _leave(self, trailers: list[Header]) -> None:
        self._stop_clock()
        self.connection.send_headers(self.number, trailers, True)
        self.is_said_out = True
        self.connection.drop(self, ErrorCodes.NO_ERROR)
        super().fail(ConnectionEnded(grpc.StatusCode.OK, "the call is over"))

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        self._end(code, details)
        if self._task is not None:
            self._task.cancel()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def fail(self, failure: ConnectionEnded) -> None:
        self._stop_clock()
        super().fail(failure)
        if self._task is not None:
            self._task.cancel()


class Server:
    """Without services and addresses at first."""

    def __init__(
        self, request_limit: Callable[[str], int], message_bytes_max: int, refused: Refused, failed: Failed
    ) -> None:
        """`request_limit`: bytes of one message of a request to the method at that path; `message_bytes_max`: of an answer.
        `refused`: is told of what limits refuse; `failed`: of what handlers raise.
        """
        self.request_limit = request_limit
        self._message_bytes_max = message_bytes_max
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._sockets: list[socket.socket] = []
        self._listening: list[asyncio.Server] = []
        self._intake = Intake(refused)
        self.failed = failed
        self.inflating = Inflating()
        self._connections: set[Connection] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Services to host."""
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        """Binds `host:port` (0: a free one) or `unix:path`; returns the port. Raises `RuntimeError` when it cannot be had."""
        try:
            bound = _bind_path(address) if address.startswith(_UNIX) else _bind_port(address)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"failed to bind {address}: {error}") from error
        self._sockets += bound
        return 1 if address.startswith(_UNIX) else int(bound[0].getsockname()[1])

    async def start(self) -> None:
        """Serves from now on."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            make = loop.create_unix_server if bound.family == socket.AF_UNIX else loop.create_server
            self._listening.append(await make(self._connection, sock=bound, backlog=BACKLOG))

    async def stop(self, grace: float | None) -> None:
        """Takes no more calls; those that run have `grace` seconds (None: none) to end."""
        for listening in self._listening:
            listening.close()
        for connection in self._connections:
            connection.leave()
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        # Whoever begins a call right now is told that it is refused, and not that the connection broke.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                while self._connections:
                    await asyncio.sleep(LEAVING_SECONDS / 10)
        for connection in list(self._connections):
            connection.close("the server has stopped")
        for bound in self._sockets:
            bound.close()
        self.inflating.close()
        self._stopped.set()

    async def wait_for_termination(self) -> None:
        """Returns when it has stopped."""
        await self._stopped.wait()

    # --- for its connections ---

    def _connection(self) -> Connection:
        connection = Connection(self._begin_call, lambda _: None, self._lost, intake=self._intake)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: Connection, _reason: str) -> None:
        self._connections.discard(connection)

    def _begin_call(self, connection: Connection, number: int) -> ServerCall:
        return ServerCall(connection, number, self._message_bytes_max, self)

    def handler_of(self, details: CallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """None: there is no such method."""
        for handlers in self._handlers:
            if (found := handlers.service(details)) is not None:  # type: ignore[arg-type]
                return found
        return None

    def run(self, call: Any) -> asyncio.Task[None]:
        """As a task that ends before the server does."""
        task: asyncio.Task[None] = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task


def _bind_path(address: str) -> list[socket.socket]:
    path = Path(address.removeprefix(_UNIX))
    if path.is_socket():
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return [bound]


def _bind_port(address: str) -> list[socket.socket]:
    """All addresses of the host, at the same port."""
    host, _, text = address.rpartition(":")
    port = int(text)
    found = socket.getaddrinfo(
        host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return bind_all([(family, place) for family, _, _, _, place in found], port)


def bind_all(places: Sequence[tuple[int, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    """At the same port (0: a free one); a place is an address behind its family. `::` alone is all of IPv4, too.

    What this machine does not have is left out. Raises `OSError` when one of the others cannot be had, or there are none.
    """
    all_bound = list[socket.socket]()
    missing = OSError(errno.EADDRNOTAVAIL, "there is no address")
    is_v6_only = len(places) > 1 or places[0][1][0] != "::"
    try:
        for family, place in places:
            try:
                bound = _bind(family, (place[0], port, *place[2:]), is_v6_only)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                all_bound.append(bound)
                port = int(bound.getsockname()[1])
        if not all_bound:
            if is_v6_only:
                raise missing
            all_bound.append(_bind(socket.AF_INET, ("0.0.0.0", port), is_v6_only))
    except OSError:
        for bound in all_bound:
            bound.close()
        raise
    return all_bound


def _bind(family: int, place: tuple[Any, ...], is_v6_only: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_v6_only)
        bound.bind(place)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
