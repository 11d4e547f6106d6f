"""What SIGTERM and Ctrl-C do to a process whose JVM is at anything."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from services.pipeline.running import LateEvents
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


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("stop(); print('not reached')", ""),
        ("\n with it.noted():\n  stop(); print('noted', flush=True); stop()", "noted\n"),
    ],
    ids=["nobody notes it", "it is the second"],
)
def test_the_process_ends_at_once_where_nobody_notes_a_stop_and_by_the_second_one(
    block: str, said: str
) -> None:
    program = (
        "import os, signal\nfrom services.pipeline.stopping import Stopping\nit = Stopping(); it.begin()\n"
        "def stop(): os.kill(os.getpid(), signal.SIGTERM)\n"
        f"try: {block}\nfinally: print('not reached')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stdout) == (INTERRUPTED, said)
