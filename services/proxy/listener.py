"""The sockets of AMQP clients: bytes of one connection, through SASL, into its AMQP connection and back.

Law: a client that takes nothing, says nothing or says too much costs its own connection and nobody else's.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from services.proxy.arrivals import Arrivals
from services.proxy.connection import AmqpConnection
from services.proxy.output_room import ALWAYS_BYTES
from services.proxy.security.identity import Identity
from services.proxy.security.sasl_layer import SaslLayer, SaslState
from services.proxy.surroundings import Surroundings

FAILED_LOGIN_SECONDS = 0.5
"""Before a connection whose login failed is closed: guessing takes longer, and the client reads why."""


class Worker(Surroundings, Protocol):
    """What a socket needs beside what its connection does."""

    has_passwords: bool
    arrivals: Arrivals

    def take_connection(self, connection: "ClientSocket") -> bool: ...
    def drop_connection(self, connection: "ClientSocket") -> None: ...


class ClientSocket(asyncio.Protocol):
    """From accept to close. Raises nothing out of its callbacks: a bug of ours ends this connection and is logged."""

    def __init__(
        self,
        worker: Worker,
        begin_sasl: Callable[[asyncio.BaseTransport], SaslLayer],
        takes_over: Callable[[], None] | None = None,
    ) -> None:
        """`takes_over`: called before this has a place among the arrivals, by which the one who had it gives it back."""
        self.connection: AmqpConnection | None = None
        self._worker = worker
        self._begin_sasl = begin_sasl
        self._transport: asyncio.Transport | None = None
        self._sasl: SaslLayer | None = None
        self._checking: asyncio.Future[bytes] | None = None
        """A login that is being looked at; the client has to wait."""
        self._deadline: asyncio.TimerHandle | None = None
        self._aborting: asyncio.TimerHandle | None = None
        self._takes_over = takes_over
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by what they do, not by type.
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        limits = self._worker.settings.limits
        # Less than what the connection may always have: whoever is held up hears that its socket has taken some.
        self._transport.set_write_buffer_limits(high=min(limits.output_bytes_max, ALWAYS_BYTES) // 2)
        if self._takes_over is not None:
            self._takes_over()
        if not self._worker.arrivals.take(self):
            self._transport.abort()
            return
        self._sasl = self._begin_sasl(transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(limits.handshake_seconds, self._check_handshake)

    def data_received(self, data: bytes) -> None:
        try:
            if self.connection is not None:
                self.connection.receive(data)
            elif self._sasl is not None:
                self._worker.arrivals.heard(self)
                self._negotiate(self._sasl, data)
        except AssertionError:
            raise
        except Exception as error:
            self.fail(error)

    def _negotiate(self, sasl: SaslLayer, data: bytes) -> None:
        """A password takes milliseconds to check: not on the event loop."""
        assert self._transport is not None
        if not self._worker.has_passwords:
            self._negotiated(sasl, sasl.receive(data))
            return
        self._transport.pause_reading()
        self._checking = asyncio.get_running_loop().run_in_executor(None, sasl.receive, data)
        self._checking.add_done_callback(lambda done: self._checked(sasl, done))

    def _checked(self, sasl: SaslLayer, done: "asyncio.Future[bytes]") -> None:
        self._checking = None
        if done.cancelled() or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._negotiated(sasl, done.result())

    def _negotiated(self, sasl: SaslLayer, rest: bytes) -> None:
        assert self._transport is not None
        if (answer := sasl.outgoing()) and not self._transport.is_closing():
            self._transport.write(answer)
        if sasl.state is SaslState.DONE:
            assert sasl.identity is not None
            self._sasl = None
            self._begin(sasl.identity, rest)
        elif sasl.state is SaslState.FAILED:
            self._sasl = None
            self._worker.refusals.seldom("login_failed", f"peer={self.peer} reason={sasl.failure}")
            asyncio.get_running_loop().call_later(FAILED_LOGIN_SECONDS, self.close)

    def _begin(self, identity: Identity, rest: bytes) -> None:
        self._worker.arrivals.drop(self)
        if not self._worker.take_connection(self):
            self.close()
            return
        self.connection = AmqpConnection(self._worker, self, identity, self.peer)
        if rest:
            self.connection.receive(rest)

    def _check_handshake(self) -> None:
        if self.connection is None or not self.connection.was_opened:
            seconds = self._worker.settings.limits.handshake_seconds
            self._worker.refusals.refused(
                "handshake", f"peer={self.peer} did not open a connection within {seconds:g} s"
            )
            self.close()

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.resume_writing()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._aborting is not None:
            self._aborting.cancel()
        self._worker.arrivals.drop(self)
        self._worker.drop_connection(self)
        if self.connection is not None:
            self.connection.lose()

    # --- what the AMQP connection asks for (Wire) ---

    def write(self, data: bytes | bytearray) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def pause_reading(self) -> None:
        """Leaves what the client sends in the kernel, which makes it wait."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes when everything is written, or is not taken in time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            seconds = self._worker.settings.limits.close_seconds
            self._aborting = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def fail(self, error: Exception) -> None:
        """A bug of ours."""
        self._worker.refusals.seldom("connection_failed", f"peer={self.peer}", error=error)
        self.close_now()

    def close_now(self) -> None:
        if self._transport is not None:
            self._transport.abort()
