"""Each sink takes a micro-batch once, though Spark runs it again; and what it holds is the log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from services.pipeline.running import RunSettings, ledger_table, run
from services.pipeline.sinks.delta import append_once
from services.pipeline.sinks.postgres import insert_once
from tests.integration.pipeline.history import History
from tests.integration.pipeline.rows import event_rows
from tests.integration.postgres_process import PostgresProcess


@pytest.fixture
def batches(spark: SparkSession) -> list[DataFrame]:
    """Two micro-batches."""
    first = spark.createDataFrame(
        [("a", 1, bytearray(b"\x00x")), ("b", 2, None)], "name string, n int, body binary"
    )
    return [first, spark.createDataFrame([("c", 3, bytearray())], first.schema)]


def test_delta_takes_a_batch_once_and_says_so_after_a_crash(batches: list[DataFrame], tmp_path: Path) -> None:
    table = tmp_path / "table"
    append = append_once(table, (), "query")
    append(batches[0], 0)
    append(batches[1], 1)
    again = append_once(table, (), "query")
    again(batches[1], 1)
    again(batches[0], 0)
    other = append_once(table, (), "another query")
    other(batches[1], 0)
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert sorted(row["name"] for row in rows) == ["a", "b", "c", "c"]


def test_postgres_takes_a_batch_once_and_ignores_what_a_killed_driver_left(
    batches: list[DataFrame], postgres: PostgresProcess
) -> None:
    url = postgres.dsn
    insert_once(url, "once", "query")(batches[0], 0)
    with psycopg.connect(url) as connection:
        # A task of a driver that was killed in the middle of the next batch.
        connection.execute("INSERT INTO once_staging VALUES ('dead', 1, 0, 'ghost', 9, NULL)")
    insert = insert_once(url, "once", "query")
    insert(batches[1], 1)
    insert(batches[1], 1)
    insert(batches[0], 0)
    with psycopg.connect(url) as connection:
        rows: list[Any] = connection.execute("SELECT name, n, body FROM once ORDER BY name").fetchall()
        assert rows == [("a", 1, b"\x00x"), ("b", 2, None), ("c", 3, b"")]
        assert connection.execute("SELECT count(*) FROM once_staging").fetchone() == (0,)


def test_a_ledger_in_delta_is_the_log(
    spark: SparkSession, settings: RunSettings, history: History, tmp_path: Path
) -> None:
    into = replace(settings, sink="delta", group="delta", output=tmp_path)
    run(spark, ["ledger"], into)
    assert event_rows(ledger_table(spark, into)) == history.rows()


def test_a_ledger_in_postgres_is_the_log(
    spark: SparkSession, settings: RunSettings, history: History, postgres: PostgresProcess, tmp_path: Path
) -> None:
    into = replace(settings, sink="postgres", group="postgres", postgres=postgres.dsn, output=tmp_path)
    run(spark, ["ledger"], into)
    names = ("resource_set", "index", "place", "kind", "commit_time", "body")
    with psycopg.connect(postgres.dsn) as connection:
        found = connection.execute(
            'SELECT resource_set, "index", place, kind, commit_time, body FROM lockstep_ledger'
            ' ORDER BY resource_set COLLATE "C", "index", place'
        ).fetchall()
    assert [dict(zip(names, row, strict=True)) for row in found] == [
        {name: row[name] for name in names} for row in history.rows()
    ]
