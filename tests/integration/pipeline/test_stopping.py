"""The pipeline is stopped by SIGTERM, at whatever it is: it ends in order, and so does its JVM."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.cli.demo.pipeline import run_pipeline
from tests.integration.pipeline.driver import Driver, running
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving, Transaction, enqueue

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer")
WAIT_SECONDS = 120.0
"""A JVM starts, on a machine that may be busy."""
INTERRUPTED = 130


@pytest.fixture
def broker() -> Iterator[str]:
    events = FakeEvents({"east": [Transaction(index, (enqueue("q", b"x"),)) for index in range(1, 20)]})
    with Serving(events) as serving:
        yield serving.addresses[0]


@pytest.fixture
def driver(broker: str, tmp_path: Path) -> Iterator[Driver]:
    arguments = ("run", "ledger", "metrics", "--brokers", broker, "--output", str(tmp_path / "tables"))
    driver = Driver(
        tmp_path / "driver.log", "services.pipeline", *arguments, "--follow", "--master", "local[1]"
    )
    try:
        yield driver
    finally:
        driver.kill()


def test_one_whose_jvm_is_starting_leaves_none(driver: Driver) -> None:
    _until(driver, lambda: any("org.apache.spark" in line for line in driver.family()))
    assert driver.stop(WAIT_SECONDS) == INTERRUPTED
    _check_end(driver)


def test_one_that_makes_its_session_breaks_off_no_call(driver: Driver) -> None:
    _until(driver, lambda: "Setting default log level" in driver.last_words())
    assert driver.stop(WAIT_SECONDS) == INTERRUPTED
    _check_end(driver)


def test_one_that_begins_its_queries_is_not_waited_for(driver: Driver, tmp_path: Path) -> None:
    _until(driver, (tmp_path / "tables").exists)
    assert driver.stop(WAIT_SECONDS) == INTERRUPTED
    _check_end(driver)


def test_one_that_follows_is_done_when_it_is_stopped(driver: Driver, tmp_path: Path) -> None:
    tables = [tmp_path / "tables" / name / "_spark_metadata" / "0" for name in ("ledger", "metrics")]
    _until(driver, lambda: all(table.exists() for table in tables))
    assert driver.stop(WAIT_SECONDS) == 0
    _check_end(driver)


def test_one_whose_jvm_is_stopped_at_the_same_time_is_done_too(driver: Driver, tmp_path: Path) -> None:
    tables = [tmp_path / "tables" / name / "_spark_metadata" / "0" for name in ("ledger", "metrics")]
    _until(driver, lambda: all(table.exists() for table in tables))
    assert driver.stop_with_all(WAIT_SECONDS) == 0
    assert [line for line in driver.family() if "java" in line] == []
    assert "lockstep pipeline:" not in driver.last_words()


async def test_a_demo_that_is_interrupted_leaves_no_pipeline(tmp_path: Path) -> None:
    def pipelines() -> list[str]:
        return [line for line in running() if "services.pipeline" in line and str(tmp_path) in line]

    demo = asyncio.create_task(run_pipeline(["127.0.0.1:1"], tmp_path))
    async with asyncio.timeout(WAIT_SECONDS):
        while not pipelines():
            await asyncio.sleep(0.01)
    demo.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await demo
    assert pipelines() == []


def _until(driver: Driver, is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        driver.check()
        assert time.monotonic() < deadline, driver.last_words()
        time.sleep(0.02)


def _check_end(driver: Driver) -> None:
    """Nothing of it runs, and Python has nothing to complain of. Workers see for themselves that their JVM is gone."""
    assert [line for line in driver.family() if "java" in line] == []
    assert "Traceback" not in driver.last_words()
