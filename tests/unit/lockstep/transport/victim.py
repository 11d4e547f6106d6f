"""The server that is attacked, in a process of its own, and a client of it that must be served all the time."""

import socket
import time
from typing import Any

import grpc
import pytest

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import OURS
from tests.unit.lockstep.transport.probe_service import path
from tests.unit.lockstep.transport.server_process import ServerProcess

RSS_GROWTH_MAX = 96 * 2**20
"""Bytes, over all that it is sent: arenas and caches fill first."""
ECHO_SECONDS = 20
TASKS_MAX = 30
"""Of a server that has nothing to do but answer that."""


class Victim:
    """Lives as long as a module of tests; a server that ended is replaced."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.process = process = ServerProcess(OURS).__enter__()
        self._channel = grpc.insecure_channel(process.address)
        self._echo: Any = self._channel.unary_unary(path("Echo"))
        self._tasks: Any = self._channel.unary_unary(path("Tasks"))
        for _ in range(200):
            self.check()
        self._resident_bytes = process.resident_bytes()

    def play(self, data: bytes, is_half_closed: bool = False) -> None:
        """Sends it on a connection of its own, reads what is there, and drops the connection."""
        with h.connect_blocking(self.process.port) as link:
            try:
                link.sendall(data)
                if is_half_closed:
                    link.shutdown(socket.SHUT_WR)
                self.check()
                link.setblocking(False)
                while link.recv(2**16):
                    pass
            except OSError:
                pass  # It was dropped, or has no more to say.
        self.check()

    def check(self) -> None:
        """Others are served."""
        try:
            assert self._echo(b"well", timeout=ECHO_SECONDS) == b"well"
        except grpc.RpcError as error:
            words = self._replace()
            self.excuse_grpcio("ends the calls of others")
            raise AssertionError(f"{error.code()}: {error.details()}\n{words[-5_000:]}") from None

    def excuse_grpcio(self, what_it_does: str) -> None:
        if not self.process.is_ours:
            pytest.xfail(f"grpcio's {what_it_does}")

    def check_end(self) -> None:
        """Nothing was left: no call, no memory, no word of an exception."""
        ends_at = time.monotonic() + ECHO_SECONDS
        while int(self._tasks(b"", timeout=ECHO_SECONDS)) > TASKS_MAX:
            assert time.monotonic() < ends_at, "calls of connections that are gone still run"
            time.sleep(0.05)
        self.check_memory()
        words = self.process.words()
        assert "Traceback" not in words, words[-5_000:]

    def check_memory(self) -> None:
        grown = self.process.resident_bytes() - self._resident_bytes
        if grown >= RSS_GROWTH_MAX:
            self._replace()
            self.excuse_grpcio("has no such limit")
        assert grown < RSS_GROWTH_MAX, f"it grew by {grown / 2**20:.0f} MiB"

    def _replace(self) -> str:
        """The next input finds a server that nothing has happened to. Returns the last words of the old one."""
        words = self.process.words()
        self.close()
        self._begin()
        return words

    def close(self) -> None:
        self._channel.close()
        self.process.__exit__()
