"""A table in PostgreSQL, by way of a staging table.

Law: tasks write into the staging table, under the query, the driver's run, the number of the micro-batch and the partition, and
each may do so again. One transaction of the driver then moves what its own run has of the batch into the table, and writes the
number down. A number that is written down is not moved again, and a batch of which something is missing is not moved.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType

PROGRESS = "lockstep_pipeline_progress"
"""Table of the last micro-batch of each query."""
_TYPES = {
    "string": "text",
    "bigint": "bigint",
    "int": "integer",
    "boolean": "boolean",
    "binary": "bytea",
    "double": "double precision",
    "timestamp": "timestamptz",
    "date": "date",
}


def to_postgres(rows: DataFrame, url: str, table: str, query: str) -> DataStreamWriter:
    """A writer of appended rows. `url`: as libpq takes it; `query`: names the checkpoint."""
    return rows.writeStream.outputMode("append").foreachBatch(insert_once(url, table, query))


def insert_once(url: str, table: str, query: str) -> Callable[[DataFrame, int], None]:
    """What is done with each micro-batch and its number."""
    # What tasks of a driver that was killed may still write is nobody's.
    run = uuid.uuid4().hex

    def insert(batch: DataFrame, number: int) -> None:
        names = batch.columns
        if not _prepare(url, table, query, number, batch):
            return
        batch.persist()
        try:
            batch.foreachPartition(_stage(url, table, query, run, number, names))
            rows = batch.count()
        finally:
            batch.unpersist()
        _move(url, table, query, run, number, names, rows)

    return insert


def _prepare(url: str, table: str, query: str, number: int, batch: DataFrame) -> bool:
    """Makes the tables; False: this batch is there already."""
    import psycopg
    from psycopg import sql

    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type(field.dataType)))
        for field in batch.schema.fields
    )
    with psycopg.connect(url) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {PROGRESS} (query text PRIMARY KEY, batch bigint NOT NULL)"
        )
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(table), columns)
        )
        connection.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE IF NOT EXISTS {} (_query text, _run text, _batch bigint, _partition integer, {})"
            ).format(sql.Identifier(_staging(table)), columns)
        )
        found = connection.execute(f"SELECT batch FROM {PROGRESS} WHERE query = %s", (query,)).fetchone()
        return found is None or number > found[0]


def _stage(
    url: str, table: str, query: str, run: str, number: int, names: Sequence[str]
) -> Callable[[Iterable[Row]], None]:
    """What a task does with its rows: replaces whatever an attempt before it left."""

    def stage(rows: Iterable[Row]) -> None:
        import psycopg
        from psycopg import sql
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        staging = sql.Identifier(_staging(table))
        columns = sql.SQL(", ").join(map(sql.Identifier, ("_query", "_run", "_batch", "_partition", *names)))
        with psycopg.connect(url) as connection:
            # Two attempts at once at the same partition go one after the other.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s), %s)", (run, partition))
            connection.execute(
                sql.SQL("DELETE FROM {} WHERE _run = %s AND _batch = %s AND _partition = %s").format(staging),
                (run, number, partition),
            )
            into = sql.SQL("COPY {} ({}) FROM STDIN").format(staging, columns)
            with connection.cursor() as cursor, cursor.copy(into) as copy:
                for row in rows:
                    copy.write_row((query, run, number, partition, *map(_value, row)))

    return stage


def _move(url: str, table: str, query: str, run: str, number: int, names: Sequence[str], rows: int) -> None:
    import psycopg
    from psycopg import sql

    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    target, staging = sql.Identifier(table), sql.Identifier(_staging(table))
    with psycopg.connect(url) as connection:
        moved = connection.execute(
            f"INSERT INTO {PROGRESS} VALUES (%s, %s) ON CONFLICT (query) DO UPDATE SET batch = excluded.batch"
            f" WHERE {PROGRESS}.batch < excluded.batch",
            (query, number),
        )
        if moved.rowcount:
            inserted = connection.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE _run = %s AND _batch = %s").format(
                    target, columns, columns, staging
                ),
                (run, number),
            ).rowcount
            # The server forgets an unlogged table when it crashes.
            if inserted != rows:
                raise RuntimeError(f"batch {number} has {rows} rows, and {_staging(table)} only {inserted}")
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE _query = %s AND _batch <= %s").format(staging), (query, number)
        )


def _staging(table: str) -> str:
    return f"{table}_staging"


def _type(kind: DataType) -> str:
    return _TYPES[kind.simpleString()]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        # Spark gives local times of the worker, which a session of another zone would take for its own.
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
