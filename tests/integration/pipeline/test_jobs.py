"""Every job over the events of a running cluster, compared with what the cluster says itself."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.client.events import EventsClient
from services.pipeline.command import VIOLATED, main
from services.pipeline.jobs.backlog import LEAVING, backlog, depth
from services.pipeline.jobs.metrics import metrics
from services.pipeline.jobs.time_in_queue import time_in_queue
from services.pipeline.running import RunSettings, run
from tests.integration.pipeline.history import History
from tests.integration.pipeline.rows import batches_of_transactions, event_rows

RunJob = Callable[[str], DataFrame]


def test_the_batch_reader_gives_the_log_row_for_row(events: DataFrame, history: History) -> None:
    rows = history.rows()
    assert event_rows(events) == rows
    kinds = Counter(row["kind"] for row in rows)
    assert set(kinds) >= {"enqueue", "dequeue", "dead_letter", "declare", "delete", "rollback"}
    assert len({row["resource_set"] for row in rows}) == 3


def test_the_ledger_is_the_log_and_running_again_adds_nothing(
    spark: SparkSession, run_job: RunJob, settings: RunSettings, history: History
) -> None:
    rows = history.rows()
    assert event_rows(run_job("ledger")) == rows
    run(spark, ["ledger"], settings)
    assert spark.read.parquet(str(settings.tables.of("ledger"))).count() == len(rows)


def test_the_last_micro_batch_is_acknowledged_too(run_job: RunJob, history: History) -> None:
    """Spark tells the source of every batch but the last."""
    run_job("ledger")
    last = {row["resource_set"]: row["index"] for row in history.rows()}
    with EventsClient(history.addresses) as client:
        acknowledged = client.subscriptions()["pipeline.ledger"]
    assert len(last) == 3
    assert all(acknowledged[name].index >= index for name, index in last.items())


def test_every_micro_batch_of_the_ledger_is_whole_transactions(
    run_job: RunJob, settings: RunSettings
) -> None:
    batches = batches_of_transactions(run_job("ledger"), settings.tables.of("ledger"))
    assert len(set().union(*batches.values())) > 2, "the limit of events makes several of them"
    assert {name: found for name, found in batches.items() if len(found) > 1} == {}


def test_metrics_count_what_the_log_has(events: DataFrame, history: History, settings: RunSettings) -> None:
    rows = history.rows()
    table = metrics(events, settings.jobs)
    summed = table.agg(*(F.sum(name).alias(name) for name in COUNTED)).collect()[0].asDict()
    assert summed == count(rows)
    latency = table.where("commits > 0").agg(F.min("commit_ms_p50"), F.max("commit_ms_p99")).collect()[0]
    commits = [
        row["duration_ms"]
        for row in rows
        if row["place"] == 0 and row["duration_ms"] is not None and row["kind"] != "rollback"
    ]
    assert min(commits) <= latency[0] <= latency[1] <= max(commits)


COUNTED = ("commits", "commands", "rollbacks", "enqueued", "dequeued", "dead_lettered", "bytes")


def count(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The same from rows, in Python."""
    first = [row for row in rows if row["place"] == 0 and row["kind"] != "rollback"]
    commands = [row for row in first if row["duration_ms"] is None]
    kinds = Counter(row["kind"] for row in rows)
    return {
        "commits": len(first) - len(commands),
        "commands": len(commands),
        "rollbacks": kinds["rollback"],
        "enqueued": kinds["enqueue"],
        "dequeued": kinds["dequeue"],
        "dead_lettered": kinds["dead_letter"],
        "bytes": sum(
            len(row["body"] or b"") + len(row["properties"] or b"")
            for row in rows
            if row["kind"] == "enqueue"
        ),
    }


def test_streamed_windows_are_those_of_the_whole_log(
    run_job: RunJob, events: DataFrame, settings: RunSettings
) -> None:
    """A stream keeps windows open until the watermark has passed them; what it gave is final and misses nothing."""
    for name, make in (("metrics", metrics), ("backlog", backlog)):
        streamed = run_job(name)
        closed = streamed.agg(F.max("end")).collect()[0][0]
        whole = make(events, settings.jobs).where(F.col("end") <= F.lit(closed))
        assert streamed.count() > 0
        assert streamed.exceptAll(whole).count() == whole.exceptAll(streamed).count() == 0


def test_the_backlog_ends_as_deep_as_the_queues_are(
    events: DataFrame, history: History, settings: RunSettings
) -> None:
    deep = depth(backlog(events, settings.jobs))
    last = deep.groupBy("queue").agg(F.max_by("depth", "begin").alias("depth")).collect()
    assert {
        row["queue"]: row["depth"] for row in last if not row["queue"].endswith("-gone")
    } == history.depths
    assert {row["depth"] for row in last if row["queue"].endswith("-gone")} == {0}


def test_time_in_queue_has_every_message_that_left(run_job: RunJob, history: History) -> None:
    rows = history.rows()
    came = {
        (row["queue_id"], row["message_id"]): row["commit_time"] for row in rows if row["kind"] == "enqueue"
    }
    expected = Counter(
        (
            row["queue"],
            row["message_id"],
            row["kind"],
            (row["commit_time"] - came[row["queue_id"], row["message_id"]]),
        )
        for row in rows
        if row["kind"] in LEAVING
    )
    found = Counter(
        (row["queue"], row["message_id"], row["kind"], timedelta(microseconds=round(1e6 * row["seconds"])))
        for row in run_job("time_in_queue").collect()
    )
    assert expected.total() > 20
    assert found == expected


def test_time_in_queue_is_the_same_for_tables(
    run_job: RunJob, events: DataFrame, settings: RunSettings
) -> None:
    whole = time_in_queue(events, settings.jobs)
    assert whole.exceptAll(run_job("time_in_queue")).count() == 0


def audit_command(history: History, settings: RunSettings, output: Path) -> tuple[str, ...]:
    return (
        *("run", "audit", "--check", "--brokers", history.brokers, "--group", settings.group),
        *("--output", str(output), "--max-events", str(settings.max_events)),
    )


def test_the_audit_of_the_ledger_finds_nothing_and_the_report_shows_it(
    spark: SparkSession,
    run_job: RunJob,
    settings: RunSettings,
    history: History,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_job("ledger")
    report = tmp_path / "report.html"
    arguments = (*audit_command(history, settings, settings.output), "--report", str(report))
    assert main(arguments, spark) == 0
    said = f"audit: {len(history.rows()):,} events, no violation\nreport: {report}\n"
    assert capsys.readouterr().out == said
    page = report.read_text()
    assert "No violation in" in page
    rest, pictures = re.subn('src="data:image/png;base64,[A-Za-z0-9+/=]+"', "", page)
    assert pictures == 4
    for reference in ("http", "src=", "href=", "url("):
        assert reference not in rest, "the page needs nothing but itself"


def test_a_ledger_that_lost_a_file_is_found_and_makes_the_exit_status(
    spark: SparkSession,
    run_job: RunJob,
    settings: RunSettings,
    history: History,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_job("ledger")
    harmed = RunSettings(history.brokers, tmp_path / "harmed")
    shutil.copytree(settings.output, harmed.output)
    log = harmed.tables.of("ledger") / "_spark_metadata" / "0"
    (log.parent / ".0.crc").unlink()
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert main(audit_command(history, settings, harmed.output), spark) == VIOLATED
    assert "missing_enqueue" in capsys.readouterr().out
    found = spark.read.parquet(str(harmed.tables.violations))
    assert found.where("violation = 'missing_enqueue'").count() > 0
