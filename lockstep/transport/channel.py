"""A gRPC client on the event loop: `grpc.aio.Channel`, as far as it is used.

Law: a channel has one connection at a time, made when it is first used and again when a call wants one. A name that has several
addresses is reached while one of them is.
"""

import asyncio
import contextlib
import ipaddress
import random
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from lockstep.transport.client_call import (
    ClientCall,
    Deserializer,
    Serializer,
    StreamUnaryCall,
    UnaryCall,
)
from lockstep.transport.connection import Connection
from lockstep.transport.keepalive import KEEPALIVE_SECONDS, KEEPALIVE_SECONDS_RARE

PAUSE_SECONDS = 0.05
"""Between two attempts to connect, at first; calls that come meanwhile wait for the next one."""
PAUSE_SECONDS_MAX = 0.2
CONNECT_SECONDS = 2.0
"""So long an attempt may take. One given up sooner than a busy server, or a long way, lets it succeed is made for ever; a longer
one may wait for the answer to a packet that was lost while the network was.
"""
ATTEMPT_SECONDS = 0.25
"""Behind the beginning of an attempt at one address of a name the next one begins, though the first has not failed (RFC 8305)."""
_Connect = Callable[[Callable[[], Connection]], Awaitable[object]]
"""Opens a connection to one address."""


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
        self._waiting: OrderedDict[ClientCall, None] = OrderedDict()
        """Calls that wait for a connection, or for room on it."""
        self._connecting: asyncio.Task[None] | None = None
        self._pause_seconds = 0.0
        self._keepalive_seconds = KEEPALIVE_SECONDS
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

        def call(request: Any, **options: Any) -> UnaryCall:
            options["request"] = request
            return UnaryCall(ClientCall(self, path, request_serializer, response_deserializer, **options))

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
            options["request"] = request
            return ClientCall(self, path, request_serializer, response_deserializer, **options)

        return call

    def stream_unary(
        self,
        path: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **_: object,
    ) -> Any:
        """A method with many requests and one answer, for which the call is awaited."""

        def call(**options: Any) -> StreamUnaryCall:
            return StreamUnaryCall(self, path, request_serializer, response_deserializer, **options)

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
            if self._is_closed:
                raise grpc.aio.UsageError("the channel is closed")
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
        waiting, self._waiting = self._waiting, OrderedDict()
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
        self._waiting[call] = None
        self.open_waiting()

    def forget(self, call: ClientCall) -> None:
        """It is over, and was not opened."""
        self._waiting.pop(call, None)

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
            self._fail(f"failed to connect to {self._address}: {str(error) or type(error).__name__}")
            return
        self._pause_seconds = 0.0
        self._connection = connection
        self._connections.add(connection)
        self.open_waiting()

    async def _made(self) -> Connection:
        """A connection whose other side has answered. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self._address.startswith("unix:"):
            path = self._address.removeprefix("unix:")
            return await self._made_by(lambda make: loop.create_unix_connection(make, path))
        host, _, port = self._address.rpartition(":")
        hosts = await _hosts(host.strip("[]"), int(port))
        # In the same order again, who is gone would be tried first each time.
        random.shuffle(hosts)
        ways = [partial(_connect, host, int(port)) for host in hosts]
        return await (self._made_by(ways[0]) if len(ways) == 1 else self._made_by_first(ways))

    async def _made_by_first(self, ways: Sequence[_Connect]) -> Connection:
        """By the first way on which somebody answers; what has begun on the others is given up."""
        attempts: dict[asyncio.Task[Connection], None] = {}
        failures: list[OSError] = []
        waiting = list(ways)
        try:
            while waiting or len(failures) < len(attempts):
                if waiting:
                    attempts[asyncio.ensure_future(self._made_by(waiting.pop(0)))] = None
                under_way = [attempt for attempt in attempts if not attempt.done()]
                await asyncio.wait(
                    under_way,
                    timeout=ATTEMPT_SECONDS if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for attempt in under_way:
                    if attempt.done():
                        try:
                            connection = attempt.result()
                        except OSError as error:
                            failures.append(error)
                        else:
                            del attempts[attempt]
                            return connection
        finally:
            await _give_up(list(attempts))
        texts = list(dict.fromkeys(map(str, failures)))
        if len(texts) == 1:
            raise failures[0]
        raise OSError(f"Multiple exceptions: {', '.join(texts)}")

    async def _made_by(self, connect: _Connect) -> Connection:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def lost(connection: Connection, reason: str) -> None:
            if not ready.done():
                ready.set_exception(ConnectionResetError(reason))
            self._connections.discard(connection)
            if connection.is_asked_too_often:
                self._keepalive_seconds = KEEPALIVE_SECONDS_RARE
            if self._connection is connection:
                self._connection = None
                if self._waiting and not self._is_closed:
                    # It had no room for them; nor may the next one, and that one, too, may be lost at once.
                    self._pause_seconds = PAUSE_SECONDS
                    loop.call_soon(self.open_waiting)

        def answered(_: Connection) -> None:
            if not ready.done():
                ready.set_result(None)
            elif connection is self._connection and not self._is_closed:
                loop.call_soon(self.open_waiting)

        connection = Connection(None, answered, lost, self._keepalive_seconds)
        try:
            await connect(lambda: connection)
            await ready
            if connection.is_lost:
                raise ConnectionResetError("lost at once")
        except BaseException:
            ready.cancel()
            connection.close("it was given up")
            raise
        return connection

    def _fail(self, reason: str) -> None:
        """Calls that wait, but those that want to wait for ever."""
        waiting, self._waiting = self._waiting, OrderedDict()
        for call in waiting:
            if call.waits_for_ready:
                self._waiting[call] = None
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
            self._waiting.popitem(last=False)[0].open(connection)


async def _connect(host: str, port: int, make: Callable[[], Connection]) -> object:
    return await asyncio.get_running_loop().create_connection(make, host, port)


async def _hosts(host: str, port: int) -> list[str]:
    """The addresses of a name, each once; of one that is an address itself, that one."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = [place for _, _, _, _, place in found]
    # Behind the two that all have, one of IPv6 has its flow and its scope.
    scopes = [f"%{place[3]}" if len(place) > 3 and place[3] else "" for place in places]
    hosts = [f"{place[0]}{scope}" for place, scope in zip(places, scopes, strict=True)]
    return list(dict.fromkeys(hosts))


async def _give_up(attempts: Sequence["asyncio.Task[Connection]"]) -> None:
    """Leaves nothing of them."""
    for attempt in attempts:
        attempt.cancel()
    for result in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(result, Connection):
            result.close("another one was first")
