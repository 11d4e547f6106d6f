"""Being stopped by SIGTERM or Ctrl-C.

Law: nothing is raised into a call of Spark, for that would leave the connection to its JVM amid an answer. Where a stop is
noted, the process ends that block first; anywhere else it ends the JVM and itself at once. A JVM that is starting is waited
for: one that cannot tell its port to whoever has started it stays for ever. Where the JVM was told to stop, too, and is gone
sooner, what fails for that is the end of the block, and no failure.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

INTERRUPTED = 130
"""Exit status of whoever is stopped before it is done; a run with --follow is done when it is stopped."""
JVM_SECONDS_MAX = 20.0
"""A JVM removes its temporary files, and stops what runs, before it is killed."""

SPARK_FAILS = (PySparkException, Py4JError, ConnectionError)
"""What a call of Spark raises, also of a JVM that is gone or about to be."""
_STDERR = 2


class Stopped(Exception):
    """The process was asked to stop in a block that notes it."""


class Stopping:
    """What SIGTERM and Ctrl-C do, from `begin` on; one of a process, driven by its main thread."""

    def __init__(self) -> None:
        self._is_noted = False
        self.is_asked = False
        """True: the block that notes it is to end."""

    def begin(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """A block in which the first stop is noted; raises `Stopped` behind it, also if Spark has failed since. The second one
        ends the process at once.
        """
        self._is_noted = True
        try:
            yield
        except SPARK_FAILS:
            if not self.is_asked:
                raise
        finally:
            self._is_noted = False
        if self.is_asked:
            self.is_asked = False
            raise Stopped

    def _stop(self, _number: int, _frame: object) -> None:
        if self._is_noted and not self.is_asked:
            self.is_asked = True
            return
        # Whatever the main thread is at, it does not go on; and what others say of a JVM that is gone is no news.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
        end_jvm()
        os._exit(INTERRUPTED)


def end_jvm() -> None:
    """Returns when the JVM that this process has started, if any, is gone."""
    gateway = SparkContext._gateway
    jvm: subprocess.Popen[bytes] | None = gateway.proc if gateway is not None else None
    if jvm is None or jvm.stdin is None:
        return
    # It ends when nobody can write to it any more.
    with contextlib.suppress(OSError):
        jvm.stdin.close()
    try:
        jvm.wait(JVM_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
