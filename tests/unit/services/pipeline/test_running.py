"""What is known of a run without a JVM."""

import subprocess
import sys
from typing import Any

import pytest

from services.pipeline.catalogue import JOBS
from services.pipeline.running import LateEvents, RunSettings, check_late


def batch(*dropped: int) -> dict[str, Any]:
    return {"stateOperators": [{"numRowsDroppedByWatermark": count} for count in dropped]}


def test_rows_that_a_watermark_dropped_are_an_error() -> None:
    check_late("ledger", [batch(), batch()])
    check_late("time_in_queue", [batch(0, 0), batch(0)])
    with pytest.raises(LateEvents, match="metrics: 7 rows came later"):
        check_late("metrics", [batch(0), batch(3, 4)])


def test_every_job_has_a_limit_and_only_timed_ones_see_transactions_in_part(tmp_path: Any) -> None:
    settings = RunSettings("a:1", tmp_path, max_events=7)
    options = {name: settings.options(job) for name, job in JOBS.items()}
    assert {one["maxEvents"] for one in options.values()} == {"7"}
    assert {name for name, one in options.items() if one["holdSeconds"] == "0"} == {"ledger"}


def test_the_source_imports_no_grpc_before_it_needs_it() -> None:
    """Spark forks its workers: threads of gRPC do not survive that."""
    program = "import sys, services.pipeline.source; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
