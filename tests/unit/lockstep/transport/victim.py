"""The server that is attacked, in a process of its own, and the calls of others that it must serve all the time."""

import socket
import time

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
        for _ in range(200):
            assert self._ask("Echo", b"well") == b"well"
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
            answer, reason = self._ask("Echo", b"well"), ""
        except OSError as error:
            answer, reason = b"", str(error)
        if answer != b"well":
            words = self._replace()
            raise AssertionError(f"others are not served: {reason}\n{words[-5_000:]}")

    def _ask(self, method: str, data: bytes) -> bytes:
        """The answer to a call on a connection of its own; nothing if there is none. Raises `OSError`."""
        with h.connect_blocking(self.process.port) as link:
            link.settimeout(ECHO_SECONDS)
            link.sendall(h.GREETING + h.call(1, path(method), data))
            received, frames = b"", list[h.Frame]()
            while not any(one.stream == 1 and h.ends(one) for one in frames):
                piece = link.recv(2**16)
                if not piece:
                    break
                received += piece
                frames = h.parse(received)[0]
        return b"".join(one.payload for one in frames if (one.kind, one.stream) == (h.DATA, 1))[5:]

    def check_end(self) -> None:
        """Nothing was left: no call, no memory, no word of an exception."""
        ends_at = time.monotonic() + ECHO_SECONDS
        while int(self._ask("Tasks", b"")) > TASKS_MAX:
            assert time.monotonic() < ends_at, "calls of connections that are gone still run"
            time.sleep(0.05)
        self.check_memory()
        words = self.process.words()
        assert "Traceback" not in words, words[-5_000:]

    def check_memory(self) -> None:
        grown = self.process.resident_bytes() - self._resident_bytes
        if grown >= RSS_GROWTH_MAX:
            self._replace()
        assert grown < RSS_GROWTH_MAX, f"it grew by {grown / 2**20:.0f} MiB"

    def _replace(self) -> str:
        """The next input finds a server that nothing has happened to. Returns the last words of the old one."""
        words = self.process.words()
        self.close()
        self._begin()
        return words

    def close(self) -> None:
        self.process.__exit__()
