"""What is known of a run without a JVM."""

import subprocess
import sys
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from services.pipeline.catalogue import JOBS
from services.pipeline.running import (
    SLOW_STARTS_MAX,
    SLOW_WORKER,
    LateEvents,
    Look,
    RunSettings,
    check_late,
    look_at,
)


def batch(*dropped: int) -> dict[str, Any]:
    return {"stateOperators": [{"numRowsDroppedByWatermark": count} for count in dropped]}


def test_rows_that_a_watermark_dropped_are_an_error() -> None:
    check_late("ledger", [batch(), batch()])
    check_late("time_in_queue", [batch(0, 0), batch(0)])
    with pytest.raises(LateEvents, match="metrics: 7 rows came later"):
        check_late("metrics", [batch(0), batch(3, 4)])


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


def test_the_source_imports_no_grpc_before_it_needs_it() -> None:
    """Spark forks its workers: threads of gRPC do not survive that."""
    program = "import sys, services.pipeline.source; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
