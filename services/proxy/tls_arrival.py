"""Sockets that are to speak TLS, from accept to the end of the handshake.

Law: nothing of the client is read before its place among the arrivals is known; whatever a handshake ends by, its place is free.
So sockets are accepted here, and TLS begins on them when they have a place.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from lockstep.runtime.limit_log import LimitLog
from services.proxy.arrivals import Arrivals
from services.proxy.listener import ClientSocket
from services.proxy.security.tls_files import TlsFiles

ListeningSocket = socket.socket
"""Bound, listening, not blocking."""
ACCEPT_PAUSE_SECONDS = 0.2
"""After a socket could not be accepted, for want of descriptors most likely."""


class TlsArrival:
    """Lives until the client's socket takes over, or the connection is gone."""

    def __init__(self, listener: "TlsListener", accepted: socket.socket, peer: str) -> None:
        self.peer = peer
        self._listener = listener
        self._accepted = accepted
        self._shaking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Shakes hands, if there is a place; else the client is turned away."""
        if self._listener.arrivals.take(self):
            self._shaking = asyncio.ensure_future(self._shake_hands())
        else:
            self._accepted.close()

    async def _shake_hands(self) -> None:
        listener = self._listener
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: listener.make_socket(self._taken_over),
                self._accepted,
                ssl=listener.files.context,
                ssl_handshake_timeout=listener.handshake_seconds,
            )
        except (OSError, TimeoutError) as error:
            listener.log.refused("tls_handshake", f"peer={self.peer} {type(error).__name__}: {error}")
        finally:
            self._taken_over()

    def _taken_over(self) -> None:
        self._listener.arrivals.drop(self)

    def close_now(self) -> None:
        if self._shaking is not None:
            self._shaking.cancel()


class TlsListener:
    """Accepts on its sockets until it is closed."""

    def __init__(
        self,
        sockets: Sequence[ListeningSocket],
        arrivals: Arrivals,
        log: LimitLog,
        files: TlsFiles,
        handshake_seconds: float,
        make_socket: Callable[[Callable[[], None]], ClientSocket],
    ) -> None:
        """`make_socket` gets what the client's socket calls when it takes over."""
        self.sockets = tuple(sockets)
        self.arrivals = arrivals
        self.log = log
        self.files = files
        self.handshake_seconds = handshake_seconds
        self.make_socket = make_socket
        self._accepting = [asyncio.ensure_future(self._accept(one)) for one in self.sockets]

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, name = await loop.sock_accept(listening)
            except OSError as error:
                self.log.refused("accept", f"no socket: {error}")
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            accepted.setblocking(False)
            TlsArrival(self, accepted, f"{name[0]}:{name[1]}").begin()

    def close(self) -> None:
        """Accepts no more; those whose handshake is under way stay."""
        for accepting in self._accepting:
            accepting.cancel()
        for one in self.sockets:
            one.close()


async def listening_sockets(host: str, port: int, backlog: int) -> list[ListeningSocket]:
    """Sockets that listen at all addresses of a host, as several processes may at one port. Raises `OSError`."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
            one.listen(backlog)
    except OSError:
        for one in made:
            one.close()
        raise
    return made
