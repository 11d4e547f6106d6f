"""What SIGTERM and Ctrl-C do to a process whose JVM is at anything."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from services.pipeline import running
from services.pipeline.running import LateEvents, RunSettings
from services.pipeline.stopping import INTERRUPTED, Stopped, Stopping

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FAILURES = (
    Py4JNetworkError("no answer"),
    ConnectionRefusedError("no port"),
    StreamingQueryException("ended"),
)


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    before = [signal.getsignal(number) for number in SIGNALS]
    stopping = Stopping()
    stopping.begin()
    yield stopping
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def noted(stopping: Stopping, *blocks: Callable[[], object]) -> None:
    with stopping.noted():
        for block in blocks:
            block()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_block_that_notes_a_stop_ends_as_it_will_and_is_stopped_behind(
    stopping: Stopping, number: int
) -> None:
    done = []

    def block() -> None:
        os.kill(os.getpid(), number)
        done.append(stopping.is_asked)

    with pytest.raises(Stopped):
        noted(stopping, block)
    assert done == [True] and not stopping.is_asked
    noted(stopping, list)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_what_spark_fails_with_is_no_failure_where_a_stop_came_before(
    stopping: Stopping, failure: Exception
) -> None:
    """Its JVM was told to stop, too, if all of a group was."""

    def block() -> None:
        raise failure

    with pytest.raises(type(failure)):
        noted(stopping, block)
    with pytest.raises(Stopped):
        noted(stopping, stop, block)


def test_events_that_were_lost_are_said_whether_or_not_a_stop_came_before(stopping: Stopping) -> None:
    def block() -> None:
        raise LateEvents("7 rows")

    with pytest.raises(LateEvents):
        noted(stopping, stop, block)


PROGRAM = """
import os, signal, subprocess, sys
from types import SimpleNamespace
from pyspark import SparkContext
from services.pipeline.stopping import Stopping

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

it = Stopping()
it.begin()
"""
NOBODY_NOTES_IT = PROGRAM + "stop(); print('not reached')"
THE_SECOND = (
    PROGRAM
    + """
with it.noted():
    stop()
    print("noted", flush=True)
    stop()
    print("not reached")
"""
)
BEHIND = (
    PROGRAM
    + """
with it.noted():
    print("noted", flush=True)
stop()
print("not reached")
"""
)
WITH_A_JVM = (
    PROGRAM
    + """
jvm = subprocess.Popen(["sh", "-c", "cat; sleep 0.5; echo gone"], stdin=subprocess.PIPE)
SparkContext._gateway = SimpleNamespace(proc=jvm)
stop()
"""
)


@pytest.mark.parametrize(
    ("program", "said"),
    [(NOBODY_NOTES_IT, ""), (THE_SECOND, "noted\n"), (BEHIND, "noted\n")],
    ids=["nobody notes it", "it is the second", "it comes behind the block"],
)
def test_the_process_ends_at_once_where_nobody_notes_a_stop_and_by_the_second_one(
    program: str, said: str
) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stdout) == (INTERRUPTED, said)


def test_whoever_is_stopped_ends_its_jvm_and_waits_for_that(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("w") as file:
        ended = subprocess.run([sys.executable, "-c", WITH_A_JVM], stdout=file, check=False)
    assert (ended.returncode, out.read_text()) == (INTERRUPTED, "gone\n")


def test_a_run_that_is_stopped_stops_its_queries(
    stopping: Stopping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Query:
        """One that is stopped while it is looked at."""

        is_stopped = False
        recentProgress: tuple[()] = ()  # noqa: N815 - as Spark has it

        def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802
            assert not stopping.is_asked, "it is looked at no more"
            stop()
            return False

        def stop(self) -> None:
            self.is_stopped = True

    queries = {name: Query() for name in ("ledger", "metrics")}
    monkeypatch.setattr(running, "start", lambda _spark, job, _settings: queries[job.name])
    nobody: Any = None
    with pytest.raises(Stopped):
        running.run(nobody, list(queries), RunSettings("a:1", tmp_path), stopping)
    assert all(query.is_stopped for query in queries.values())
