"""The pipeline's driver as a process of its own, that can be killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from services.pipeline.running import RunSettings

SLOW = "Python worker failed to connect back"
"""What Spark says when a Python process needs more than 10 s to start, which it does not wait for: the machine is busy."""
STARTS_MAX = 5


class Driver:
    """`python -m services.pipeline run`, with its JVM; started again after each kill."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        self._command = (sys.executable, "-m", "services.pipeline", "run", *arguments, "--master", "local[1]")
        self._starts = 0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._starts += 1
        # Few rows: the time goes into compiling.
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        with self.log.open("wb") as log:
            # A group of its own, so that the kill meets Python and JVM at once.
            return subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self._starts = 0
        self._process = self._start()

    def check(self) -> None:
        """It runs; one that was too slow for Spark is started again, some times. Raises `AssertionError`."""
        if self._process.poll() is not None:
            said = self.log.read_text()
            assert SLOW in said and self._starts < STARTS_MAX, (
                f"the driver has ended by itself:\n{said[-3000:]}"
            )
            self._process = self._start()

    def wait(self, seconds: float) -> None:
        """Until it has ended well. Raises `AssertionError`."""
        while (status := self._process.wait(seconds)) != 0:
            said = self.log.read_text()
            assert SLOW in said and self._starts < STARTS_MAX, f"status {status}:\n{said[-3000:]}"
            self._process = self._start()


def ledger_arguments(settings: RunSettings, *more: str) -> tuple[str, ...]:
    """Of a run of the ledger."""
    return (
        *(
            "ledger",
            "--brokers",
            settings.brokers,
            "--output",
            str(settings.output),
            "--group",
            settings.group,
        ),
        *("--max-events", str(settings.max_events), "--start", "earliest", *more),
    )


def batches_done(table: Path) -> int:
    """How many micro-batches are in a ledger's metadata."""
    numbers = [one.name.partition(".")[0] for one in (table / "_spark_metadata").glob("[0-9]*")]
    return len({number for number in numbers if number.isdigit()})
