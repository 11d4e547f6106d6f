"""A server with the probe in a process of its own, to be killed, stopped and attacked; and how a test starts one.

It prints its address and whose it is, and ends when its standard input is closed: no run of tests leaves one behind.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

import uvloop

from tests.unit.lockstep.transport.ends import Ends
from tests.unit.lockstep.transport.probe_service import Probe

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ServerProcess:
    """A context: the process runs when it is entered, and is gone when it is left."""

    def __init__(self, implementation: str, address: str = "127.0.0.1:0") -> None:
        """`implementation`: `OURS` or `GRPCIO`."""
        self._arguments = (implementation, address)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `__exit__`
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.lockstep.transport.server_process", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        assert self.address, self.words()
        return self

    def __exit__(self, *_: object) -> None:
        process = self.running
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        self._errors.close()

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()

    def halt(self) -> None:
        """It hangs: its kernel still answers."""
        self.running.send_signal(signal.SIGSTOP)

    def is_alive(self) -> bool:
        return self.running.poll() is None

    def words(self) -> str:
        """What it said on standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.running.pid}/statm").read_text().split()[1]) * _PAGE_BYTES


async def main(implementation: str, address: str) -> None:
    ends = Ends(implementation, implementation)
    served = await ends.serve(Probe().handlers(), address=address)
    print(served.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await ends.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
