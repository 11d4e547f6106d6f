"""The two ends of a connection, each ours or grpcio's: what a test says holds for every pair of them.

Law: the wire is gRPC's, so no end can tell whose the other one is.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, ParamSpec, TypeVar

import grpc
import grpc.aio

from lockstep.runtime import channels
from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX

OURS = "ours"
GRPCIO = "grpcio"
PAIRS = ((OURS, OURS), (OURS, GRPCIO), (GRPCIO, OURS))
"""Client and server. Two of grpcio's would test nothing of ours."""

_UNLIMITED = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.so_reuseport", 0),
)
"""Of grpcio's ends: the limits that are met are those of ours."""

Options = tuple[tuple[str, int], ...]
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Served(NamedTuple):
    """A server that runs, and where."""

    server: Any
    address: str


class Ends:
    """Makes servers and channels of one pair; lives as long as its test, and ends them with it."""

    def __init__(self, client: str, server: str) -> None:
        self.client = client
        self.server = server
        self._servers: list[Any] = []
        self._channels: list[Any] = []

    def make_server(self, options: Options = ()) -> Any:
        """One without services and ports; `options`: of grpcio's, where that is the server."""
        if self.server == OURS:
            server: Any = channels.make_server(lambda _: MESSAGE_BYTES_MAX)
        else:
            server = grpc.aio.server(options=_UNLIMITED + options)
        self._servers.append(server)
        return server

    async def serve(
        self, *handlers: grpc.GenericRpcHandler, address: str = "127.0.0.1:0", options: Options = ()
    ) -> Served:
        """A server of these services that runs."""
        server = self.make_server(options)
        server.add_generic_rpc_handlers(handlers)
        port = server.add_insecure_port(address)
        await server.start()
        return Served(server, address if address.startswith("unix:") else f"127.0.0.1:{port}")

    def open_channel(self, address: str, options: Options = ()) -> Any:
        """`options`: of grpcio's, where that is the client."""
        if self.client == OURS:
            channel: Any = channels.open_channel(address)
        else:
            channel = grpc.aio.insecure_channel(address, options=_UNLIMITED + options)
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        for server in self._servers:
            await server.stop(None)


def within(
    seconds: float,
) -> Callable[
    [Callable[_Parameters, Coroutine[Any, Any, _Result]]], Callable[_Parameters, Coroutine[Any, Any, _Result]]
]:
    """Of a test: it fails when it is not over by then. Far more than it needs: what hangs is found, not what is slow."""

    def bounded(
        test: Callable[_Parameters, Coroutine[Any, Any, _Result]],
    ) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
        @functools.wraps(test)
        async def run(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
            async with asyncio.timeout(seconds):
                return await test(*args, **named)

        return run

    return bounded
