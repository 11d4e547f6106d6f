"""What is known of a run without a JVM."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from services.pipeline.catalogue import JOBS
from services.pipeline.running import (
    SLOW_STARTS_MAX,
    SLOW_WORKER,
    LateEvents,
    Look,
    RunSettings,
    check_late,
    end,
    look_at,
    start,
)
from services.pipeline.sinks.delta import append_once
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving, Transaction, enqueue
from tests.unit.services.pipeline.test_delta import Frame


def batch(*dropped: int) -> dict[str, Any]:
    return {"stateOperators": [{"numRowsDroppedByWatermark": count} for count in dropped]}


def test_rows_that_a_watermark_dropped_are_an_error() -> None:
    check_late("ledger", [batch(), batch()])
    check_late("time_in_queue", [batch(0, 0), batch(0)])
    with pytest.raises(LateEvents, match="metrics: 7 rows came later"):
        check_late("metrics", [batch(0), batch(3, 4)])


class Running:
    """A query, until it is stopped: what it did then, too; None: its JVM is gone."""

    def __init__(self, *progress: dict[str, Any], last: dict[str, Any] | None) -> None:
        self._progress, self._last = list(progress), last
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True
        if self._last is None:
            raise Py4JNetworkError("no answer")
        self._progress.append(self._last)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - as Spark has it
        if self._last is None:
            raise ConnectionRefusedError("no port")
        return self._progress


def test_what_a_watermark_dropped_just_before_a_query_was_stopped_is_an_error_too() -> None:
    end({"ledger": cast(Any, Running(batch(0), last=batch(0)))})
    queries: dict[str, Any] = {"metrics": Running(batch(0), last=batch(7)), "ledger": Running(last=batch(0))}
    with pytest.raises(LateEvents, match="metrics: 7 rows came later"):
        end(queries)
    assert queries["ledger"].is_stopped, "all are stopped before anything is said"


def test_queries_whose_jvm_is_gone_are_stopped() -> None:
    queries: dict[str, Any] = {"ledger": Running(last=None), "metrics": Running(last=None)}
    end(queries)
    assert queries["metrics"].is_stopped


class Query:
    """One that fails as it is told."""

    def __init__(self, failure: str) -> None:
        self._failure = failure

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - as Spark has it
        if self._failure:
            raise StreamingQueryException(self._failure)
        return True


def test_a_query_is_started_again_when_the_machine_was_too_slow_for_spark_and_not_for_ever() -> None:
    slow: Any = Query(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {SLOW_WORKER}.")
    assert look_at(slow, 0) is Look.TOO_SLOW
    with pytest.raises(StreamingQueryException):
        look_at(slow, SLOW_STARTS_MAX)
    wrong: Any = Query("something else")
    with pytest.raises(StreamingQueryException):
        look_at(wrong, 0)
    good: Any = Query("")
    assert look_at(good, 0) is Look.ENDED


def test_every_job_has_a_limit_and_only_timed_ones_see_transactions_in_part(tmp_path: Any) -> None:
    settings = RunSettings("a:1", tmp_path, max_events=7)
    options = {name: settings.options(job) for name, job in JOBS.items()}
    assert {one["maxEvents"] for one in options.values()} == {"7"}
    assert {name for name, one in options.items() if one["holdSeconds"] == "0"} == {"ledger"}


class BeforeSpark(Exception):
    """Nothing stands against the query."""


class Spark:
    @property
    def readStream(self) -> Any:  # noqa: N802 - as Spark has it
        raise BeforeSpark


@pytest.fixture
def broker() -> FakeEvents:
    return FakeEvents({"east": [Transaction(10, (enqueue("q", b"x"),))]})


@pytest.fixture
def settings(broker: FakeEvents, tmp_path: Path) -> Iterator[RunSettings]:
    with Serving(broker) as serving:
        yield RunSettings(serving.addresses[0], tmp_path)


def begin(settings: RunSettings) -> None:
    spark: Any = Spark()
    start(spark, JOBS["ledger"], settings)


def plan_batch(settings: RunSettings, number: int = 0) -> None:
    """As Spark writes it down."""
    offsets = settings.tables.checkpoint("ledger", settings.sink).directory / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(number)).touch()


def test_files_and_another_checkpoint_are_no_query(settings: RunSettings) -> None:
    log = settings.tables.of("ledger") / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").touch()
    with pytest.raises(ValueError, match=r"ledger has micro-batches up to 0 of the checkpoint .* knows none"):
        begin(settings)
    plan_batch(settings)
    with pytest.raises(BeforeSpark):
        begin(settings)


def test_a_table_of_which_the_checkpoint_is_lost_goes_on_with_a_new_one(settings: RunSettings) -> None:
    into, table = replace(settings, sink="delta"), settings.tables.of("ledger")
    frame: Any = Frame(1)
    checkpoint = into.tables.checkpoint("ledger", "delta")
    for rows in (1, 2):
        with pytest.raises(BeforeSpark):
            begin(into)
        append_once(table, (), checkpoint, checkpoint.name("any"))(frame, 0)
        assert DeltaTable(str(table)).to_pyarrow_table().num_rows == rows
        shutil.rmtree(checkpoint.directory)


def test_a_checkpoint_that_was_set_back_is_not_that_of_its_table(settings: RunSettings) -> None:
    into, table = replace(settings, sink="delta"), settings.tables.of("ledger")
    frame: Any = Frame(1)
    with pytest.raises(BeforeSpark):
        begin(into)
    checkpoint = into.tables.checkpoint("ledger", "delta")
    append = append_once(table, (), checkpoint, checkpoint.name("any"))
    plan_batch(into)
    for number in (0, 1):
        append(frame, number)
    with pytest.raises(ValueError, match=r"up to 1 of the checkpoint .* those up to 0"):
        begin(into)


def test_a_delta_table_that_was_set_back_is_not_gone_on_with(settings: RunSettings) -> None:
    """Its checkpoint has a batch without rows behind it, of which the table knows nothing in any case."""
    into, table = replace(settings, sink="delta"), settings.tables.of("ledger")
    checkpoint = into.tables.checkpoint("ledger", "delta")
    with pytest.raises(BeforeSpark):
        begin(into)
    append = append_once(table, (), checkpoint, checkpoint.name("any"))
    for number, rows in enumerate((Frame(1), Frame(2), Frame())):
        frame: Any = rows
        plan_batch(into, number)
        append(frame, number)
    with pytest.raises(BeforeSpark):
        begin(into)
    sorted((table / "_delta_log").glob("*.json"))[-1].unlink()
    with pytest.raises(ValueError, match=r"has micro-batches up to 0 of the checkpoint"):
        begin(into)


def test_a_query_with_a_checkpoint_opens_no_group(broker: FakeEvents, settings: RunSettings) -> None:
    with pytest.raises(BeforeSpark):
        begin(settings)
    plan_batch(settings)
    broker.groups.clear()
    with pytest.raises(ValueError, match=r"no group 'pipeline\.ledger', and the query has a checkpoint"):
        begin(settings)
    assert broker.groups == {}


def test_the_source_imports_no_grpc_before_it_needs_it() -> None:
    """Spark forks its workers: threads of gRPC do not survive that."""
    program = "import sys, services.pipeline.source; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
