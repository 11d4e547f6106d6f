"""What a ledger's table has, whatever its sink is."""

from typing import Any

import psycopg
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from services.pipeline.running import RunSettings, ledger_table
from services.pipeline.schema import COLUMNS
from services.pipeline.sinks.postgres import PROGRESS
from tests.integration.pipeline.rows import event_rows


def batches_in(settings: RunSettings) -> int:
    """How many micro-batches it has, or has seen."""
    table = settings.tables.of("ledger")
    match settings.sink:
        case "parquet":
            names = [one.name.partition(".")[0] for one in (table / "_spark_metadata").glob("[0-9]*")]
            return len({name for name in names if name.isdigit()})
        case "delta":
            return len(list((table / "_delta_log").glob("*.json")))
        case _:
            return _batches_in_postgres(settings)


def _batches_in_postgres(settings: RunSettings) -> int:
    with psycopg.connect(settings.postgres) as connection:
        if connection.execute("SELECT to_regclass(%s)", (PROGRESS,)).fetchone() == (None,):
            return 0
        found = connection.execute(
            f"SELECT batch + 1 FROM {PROGRESS} WHERE starts_with(query, %s)", (f"{settings.group}.ledger/",)
        ).fetchone()
        return found[0] if found is not None else 0


def rows_in(spark: SparkSession, settings: RunSettings) -> list[dict[str, Any]]:
    """In order of sets and logs."""
    if settings.sink != "postgres":
        return event_rows(ledger_table(spark, settings))
    with psycopg.connect(settings.postgres, row_factory=dict_row) as connection:
        ledger = connection.execute(
            'SELECT * FROM lockstep_ledger ORDER BY resource_set COLLATE "C", "index", place'
        ).fetchall()
    return [{name: row[name] for name, _ in COLUMNS} for row in ledger]
