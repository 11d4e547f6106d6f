"""A Delta table, by the `deltalake` package: no plug-in for the JVM.

Law: a micro-batch and its number are one commit. The table's log keeps the highest number of each query (Delta's *application
transaction*), and a batch that is not above it is there already.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter


def to_delta(rows: DataFrame, table: Path, partitions: Sequence[str], query: str) -> DataStreamWriter:
    """A writer of appended rows. A micro-batch passes through the driver's memory: `maxEvents` is its limit.

    `query`: names the checkpoint; the same for as long as that is used.
    """
    return rows.writeStream.outputMode("append").foreachBatch(append_once(table, partitions, query))


def append_once(table: Path, partitions: Sequence[str], query: str) -> Callable[[DataFrame, int], None]:
    """What is done with each micro-batch and its number."""

    def append(batch: DataFrame, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        is_table = DeltaTable.is_deltatable(str(table))
        last = DeltaTable(str(table)).transaction_version(query) if is_table else None
        if last is not None and number <= last:
            return
        # Read once: the rows of a micro-batch are computed again by every action on it.
        batch.persist()
        try:
            arrow = batch.toArrow()
        finally:
            batch.unpersist()
        if not arrow.num_rows and is_table:
            return
        write_deltalake(
            str(table),
            arrow,
            mode="append",
            partition_by=list(partitions) or None,
            commit_properties=CommitProperties(app_transactions=[Transaction(query, number)]),
        )

    return append
