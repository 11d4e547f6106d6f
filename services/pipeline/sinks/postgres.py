"""A table in PostgreSQL, by way of a staging table.

Law: tasks write into the staging table, under the checkpoint, the driver's run with the attempt, the micro-batch's number and the
partition. An attempt waits for no other at the same partition; the last that ends replaces the others. One transaction of the
driver then moves what its own run has of the batch into the table, and writes the number down. A number that is written down is
not moved again, and a batch of which something is missing is not moved.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType

from lockstep.core.counted import counted
from services.pipeline.checkpoint import NONE

if TYPE_CHECKING:
    import psycopg

PROGRESS = "lockstep_pipeline_progress"
"""Table of the last micro-batch of each checkpoint; `query` is its name."""
CLIENT_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""Whoever waits for a server whose machine is gone knows after half a minute. In libpq's words; a URL that has them is right."""
SERVER_LIMITS = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""So does the server, whose client may have a lock. By the defaults of Linux nobody else would get it for two hours."""
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


def to_postgres(rows: DataFrame, url: str, table: str, checkpoint: str) -> DataStreamWriter:
    """A writer of appended rows. `url`: as libpq takes it; `checkpoint`: its name."""
    return rows.writeStream.outputMode("append").foreachBatch(insert_once(url, table, checkpoint))


def last_batch(url: str, checkpoint: str) -> int:
    """The last micro-batch that the database has of a checkpoint."""
    with _connect(url) as connection:
        if connection.execute("SELECT to_regclass(%s)", (PROGRESS,)).fetchone() == (None,):
            return NONE
        return _last(connection, checkpoint)


def insert_once(url: str, table: str, checkpoint: str) -> Callable[[DataFrame, int], None]:
    """What is done with each micro-batch and its number."""
    # What tasks of a driver that was killed may still write is nobody's.
    run = uuid.uuid4().hex

    def insert(batch: DataFrame, number: int) -> None:
        names = batch.columns
        if not _prepare(url, table, checkpoint, number, batch):
            return
        batch.persist()
        try:
            batch.foreachPartition(_stage(url, table, checkpoint, run, number, names))
            rows = batch.count()
        finally:
            batch.unpersist()
        _move(url, table, checkpoint, run, number, names, rows)

    return insert


def _prepare(url: str, table: str, checkpoint: str, number: int, batch: DataFrame) -> bool:
    """Makes the tables; False: this batch is there already."""
    from psycopg import sql

    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type(field.dataType)))
        for field in batch.schema.fields
    )
    with _connect(url) as connection:
        connection.execute("SET client_min_messages = warning")
        # Of two that make the same table at the same time one fails, though it says IF NOT EXISTS.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (PROGRESS,))
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
        return number > _last(connection, checkpoint)


def _last(connection: "psycopg.Connection", checkpoint: str) -> int:
    found = connection.execute(f"SELECT batch FROM {PROGRESS} WHERE query = %s", (checkpoint,)).fetchone()
    return found[0] if found is not None else NONE


def _stage(
    url: str, table: str, checkpoint: str, run: str, number: int, names: Sequence[str]
) -> Callable[[Iterable[Row]], None]:
    """What a task does with its rows: in the end they are all that is there of the partition."""

    def stage(rows: Iterable[Row]) -> None:
        from psycopg import sql
        from pyspark import TaskContext

        attempt = f"{run}.{uuid.uuid4().hex}"
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        staging = sql.Identifier(_staging(table))
        columns = sql.SQL(", ").join(map(sql.Identifier, ("_query", "_run", "_batch", "_partition", *names)))
        with _connect(url) as connection:
            into = sql.SQL("COPY {} ({}) FROM STDIN").format(staging, columns)
            with connection.cursor() as cursor, cursor.copy(into) as copy:
                for row in rows:
                    copy.write_row((checkpoint, attempt, number, partition, *map(_value, row)))
            # Not before the rows are there: an attempt that is stuck among them would keep its successor waiting.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s), %s)", (run, partition))
            connection.execute(
                sql.SQL(
                    "DELETE FROM {} WHERE starts_with(_run, %s) AND _run <> %s AND _batch = %s AND _partition = %s"
                ).format(staging),
                (run, attempt, number, partition),
            )

    return stage


def _move(
    url: str, table: str, checkpoint: str, run: str, number: int, names: Sequence[str], rows: int
) -> None:
    from psycopg import sql

    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    target, staging = sql.Identifier(table), sql.Identifier(_staging(table))
    with _connect(url) as connection:
        moved = connection.execute(
            f"INSERT INTO {PROGRESS} VALUES (%s, %s) ON CONFLICT (query) DO UPDATE SET batch = excluded.batch"
            f" WHERE {PROGRESS}.batch < excluded.batch",
            (checkpoint, number),
        )
        if moved.rowcount:
            inserted = connection.execute(
                sql.SQL(
                    "INSERT INTO {} ({}) SELECT {} FROM {} WHERE starts_with(_run, %s) AND _batch = %s"
                ).format(target, columns, columns, staging),
                (run, number),
            ).rowcount
            # The server forgets an unlogged table when it crashes.
            if inserted != rows:
                raise RuntimeError(
                    f"batch {number} has {counted(rows, 'row')}, and {_staging(table)} only {inserted}"
                )
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE _query = %s AND _batch <= %s").format(staging),
            (checkpoint, number),
        )


@contextlib.contextmanager
def _connect(url: str) -> "Iterator[psycopg.Connection]":
    """For one transaction, with a limit to each wait for a machine that is gone."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.json import Jsonb

    limits: dict[str, Any] = {**CLIENT_LIMITS, **conninfo_to_dict(url)}
    with psycopg.connect(**limits) as connection:
        # Of this transaction, and only what nobody has set: options of the connection would replace those that its user gives.
        connection.execute(
            "SELECT set_config(name, value, true) FROM jsonb_each_text(%s) AS limits(key, value)"
            " JOIN pg_settings ON name = key WHERE source = 'default'",
            (Jsonb(SERVER_LIMITS),),
        )
        yield connection


def _staging(table: str) -> str:
    return f"{table}_staging"


def _type(kind: DataType) -> str:
    return _TYPES[kind.simpleString()]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        # Spark gives local times of the worker, which a session of another zone would take for its own.
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
