"""The pipeline's driver as a process of its own, that can be killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from services.pipeline.running import SLOW_WORKER

STARTS_MAX = 5
ENVIRONMENT = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Few rows: the time goes into compiling."""


def running(is_wanted: Callable[[int], bool] = lambda _: True) -> list[str]:
    """The command lines of processes; `is_wanted` is given a process id, and may raise `OSError`."""
    found = []
    for pid in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if pid.isdigit() and is_wanted(int(pid)):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in found if line]


class Driver:
    """A module that runs queries, with its JVM; started again when it is told so."""

    def __init__(
        self, log: Path, module: str, *arguments: str, environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        self.log = log
        self._environment = environment
        self._command = (sys.executable, "-m", module, *arguments)
        self._starts = 0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._starts += 1
        with self.log.open("wb") as log:
            # A group of its own, so that the kill meets Python and JVM at once.
            return subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
            )

    def kill(self) -> None:
        """SIGKILL, also to a JVM that has outlived it; returns when the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, seconds: float) -> int:
        """SIGTERM to the driver alone, as whoever supervises it sends it; its exit status."""
        self._process.terminate()
        return self._process.wait(seconds)

    def stop_with_all(self, seconds: float) -> int:
        """The same to its JVM, too, at the same time."""
        os.killpg(self._process.pid, signal.SIGTERM)
        return self._process.wait(seconds)

    def family(self) -> list[str]:
        """The command lines of what runs of it: of the driver, its JVM, and Python's workers."""
        return running(lambda pid: os.getsid(pid) == self._process.pid)

    def start_again(self) -> None:
        """After a kill."""
        self._starts = 0
        self._process = self._start()

    def check(self) -> None:
        """It runs; one that was too slow for Spark is started again, some times. Raises `AssertionError`."""
        if self._process.poll() is not None:
            self._start_if_slow("the driver has ended by itself")

    def wait(self, seconds: float) -> None:
        """Until it has ended well. Raises `AssertionError`."""
        while (status := self._process.wait(seconds)) != 0:
            self._start_if_slow(f"status {status}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _start_if_slow(self, what: str) -> None:
        said = self.log.read_text(errors="replace")
        assert SLOW_WORKER in said and self._starts < STARTS_MAX, f"{what}:\n{said[-3000:]}"
        self._process = self._start()
