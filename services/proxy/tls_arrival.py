"""A socket that is to speak TLS, from accept to the end of the handshake.

Law: nothing of the client is read before its place among the arrivals is known; whatever a handshake ends by, its place is free.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from lockstep.runtime.limit_log import LimitLog
from services.proxy.arrivals import Arrivals
from services.proxy.listener import ClientSocket


class TlsArrival(asyncio.Protocol):
    """Lives until the client's socket takes over, or the connection is gone."""

    def __init__(
        self,
        arrivals: Arrivals,
        log: LimitLog,
        context: ssl.SSLContext,
        handshake_seconds: float,
        make_socket: Callable[[], ClientSocket],
    ) -> None:
        self.peer = "?"
        self._arrivals = arrivals
        self._log = log
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._make_socket = make_socket
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        if not self._arrivals.take(self):
            self._transport.abort()
            return
        # What comes now is TLS's.
        self._transport.pause_reading()
        self._shaking = asyncio.ensure_future(self._shake_hands(self._transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        socket = self._make_socket()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                socket,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except (OSError, TimeoutError) as error:
            self._log.refused("tls_handshake", f"peer={self.peer} {type(error).__name__}: {error}")
            transport.abort()
            return
        finally:
            self._arrivals.drop(self)
        if secured is not None and not secured.is_closing():
            socket.connection_made(secured)

    def connection_lost(self, error: Exception | None) -> None:
        self._arrivals.drop(self)
        if self._shaking is not None:
            self._shaking.cancel()

    def close_now(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._shaking is not None:
            self._shaking.cancel()
