"""Each sink takes a micro-batch once, though Spark runs it again; and what it holds is the log."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from lockstep.client.events import EventsClient
from services.pipeline.checkpoint import Checkpoint
from services.pipeline.running import RunSettings, ledger_table, run
from services.pipeline.sinks.delta import append_once
from services.pipeline.sinks.postgres import insert_once
from tests.integration.pipeline.history import History
from tests.integration.pipeline.sink_tables import rows_in
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
    checkpoint, another = (Checkpoint(tmp_path / name) for name in ("query", "another"))
    append = append_once(table, (), checkpoint, checkpoint.name("query"))
    append(batches[0], 0)
    append(batches[1], 1)
    again = append_once(table, (), checkpoint, checkpoint.name("query"))
    again(batches[1], 1)
    again(batches[0], 0)
    other = append_once(table, (), another, another.name("query"))
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
        connection.execute("INSERT INTO once_staging VALUES ('query', 'dead', 1, 0, 'ghost', 9, NULL)")
        # Another query's batch, still to be moved.
        connection.execute("INSERT INTO once_staging VALUES ('another', 'alive', 0, 0, 'x', 1, NULL)")
    insert = insert_once(url, "once", "query")
    insert(batches[1], 1)
    insert(batches[1], 1)
    insert(batches[0], 0)
    with psycopg.connect(url) as connection:
        rows: list[Any] = connection.execute("SELECT name, n, body FROM once ORDER BY name").fetchall()
        assert rows == [("a", 1, b"\x00x"), ("b", 2, None), ("c", 3, b"")]
        assert connection.execute("SELECT _query FROM once_staging").fetchall() == [("another",)]


def test_a_batch_of_which_postgres_lost_rows_is_not_taken(
    batches: list[DataFrame], postgres: PostgresProcess
) -> None:
    """As when the server crashes between staging and moving: staging tables are not logged."""
    insert = insert_once(postgres.dsn, "lost", "losing query")
    insert(batches[1], 0)
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        connection.execute(
            "CREATE TRIGGER losing BEFORE INSERT ON lost_staging FOR EACH ROW WHEN (NEW.n = 2) EXECUTE FUNCTION lose()"
        )
    with pytest.raises(RuntimeError, match="batch 1 has 2 rows, and lost_staging only 1"):
        insert(batches[0], 1)
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT name FROM lost").fetchall() == [("c",)]
        connection.execute("DROP TRIGGER losing ON lost_staging")
    insert(batches[0], 1)
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT name FROM lost ORDER BY name").fetchall() == [
            ("a",),
            ("b",),
            ("c",),
        ]


@pytest.fixture
def workers_in_berlin(spark: SparkSession) -> Iterator[None]:
    """Spark starts other workers where their environment is another."""
    environment = spark.sparkContext.environment
    environment["TZ"] = "Europe/Berlin"
    yield
    del environment["TZ"]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.usefixtures("workers_in_berlin")
def test_postgres_has_the_times_of_events_whatever_the_zones_of_workers_and_server(
    spark: SparkSession, postgres: PostgresProcess, zone: str
) -> None:
    # In summer, and in both of the hours from two to three of the night in which it ends.
    times = [1_750_000_000, 1_761_438_600, 1_761_438_600 + 3600]
    rows = spark.createDataFrame([(time,) for time in times], "n bigint").selectExpr(
        "n", "timestamp_seconds(n) AS at", "IF(n = 0, timestamp_seconds(n), NULL) AS none"
    )
    table = f"times_{zone.rpartition('/')[2].lower()}"
    url = f"{postgres.dsn} options='-c timezone={zone}'"
    insert_once(url, table, table)(rows, 0)
    with psycopg.connect(url) as connection:
        found: list[Any] = connection.execute(
            f"SELECT n, extract(epoch FROM at)::bigint, none FROM {table} ORDER BY n"
        ).fetchall()
    assert found == [(time, time, None) for time in times]


@pytest.mark.parametrize("sink", ["delta", "postgres"])
def test_a_ledger_is_the_log(
    spark: SparkSession,
    settings: RunSettings,
    history: History,
    postgres: PostgresProcess,
    tmp_path: Path,
    sink: str,
) -> None:
    """And all of it again, when it is read anew: a new checkpoint counts its micro-batches from 0, too."""
    into = replace(settings, sink=sink, group=sink, postgres=postgres.dsn, output=tmp_path)
    run(spark, ["ledger"], into)
    assert rows_in(spark, into) == history.rows()
    with EventsClient(history.addresses) as client:
        client.close_subscription(f"{sink}.ledger")
    with pytest.raises(ValueError, match="no group"):
        run(spark, ["ledger"], into)
    shutil.rmtree(into.tables.checkpoint("ledger", sink).directory)
    run(spark, ["ledger"], into)
    assert rows_in(spark, into) == [row for row in history.rows() for _ in range(2)]
    # It goes on, and there is nothing.
    run(spark, ["ledger"], into)
    assert len(rows_in(spark, into)) == 2 * len(history.rows())
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("DROP TABLE IF EXISTS lockstep_ledger")


def test_files_are_a_table_together_with_their_checkpoint(
    spark: SparkSession, settings: RunSettings, tmp_path: Path
) -> None:
    into = replace(settings, group="files", output=tmp_path / "tables")
    run(spark, ["ledger"], into)
    count = ledger_table(spark, into).count()
    for one in (into.tables.checkpoint("ledger", "parquet").directory, into.tables.of("ledger")):
        away = one.rename(tmp_path / "away")
        with pytest.raises(ValueError, match="one of them was deleted"):
            run(spark, ["ledger"], into)
        shutil.rmtree(one, ignore_errors=True)
        away.rename(one)
        run(spark, ["ledger"], into)
        assert ledger_table(spark, into).count() == count > 0


def test_a_ledger_in_delta_has_the_names_of_resource_sets_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = RunSettings("", tmp_path, sink="delta")
    names = ["east", "östlich", "東", "a b%C3"]
    rows = spark.createDataFrame([(name,) for name in names], "resource_set string")
    rows = rows.selectExpr("resource_set", "1 AS n")
    checkpoint = settings.tables.checkpoint("ledger", "delta")
    append = append_once(settings.tables.of("ledger"), ("resource_set",), checkpoint, checkpoint.name("q"))
    append(rows, 0)
    assert sorted(row["resource_set"] for row in ledger_table(spark, settings).collect()) == sorted(names)
