"""A Delta table, by the `deltalake` package: no plug-in for the JVM.

Law: a micro-batch and its number are one commit. The table's log keeps the highest number of each checkpoint (Delta's
*application transaction*), and a batch that is not above it is there already. A commit is made upon the version of the table that
was looked at: it fails if another driver has taken a batch of the same checkpoint since.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from services.pipeline.checkpoint import NONE

if TYPE_CHECKING:
    from deltalake import DeltaTable


def to_delta(rows: DataFrame, table: Path, partitions: Sequence[str], checkpoint: str) -> DataStreamWriter:
    """A writer of appended rows. A micro-batch passes through the driver's memory: `maxEvents` is its limit.

    `checkpoint`: its name.
    """
    return rows.writeStream.outputMode("append").foreachBatch(append_once(table, partitions, checkpoint))


def append_once(table: Path, partitions: Sequence[str], checkpoint: str) -> Callable[[DataFrame, int], None]:
    """What is done with each micro-batch and its number."""

    def append(batch: DataFrame, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        found = opened(table)
        if found is None and number:
            raise RuntimeError(f"{table} is gone, and the micro-batches before {number} with it")
        if found is not None and number <= _last(found, checkpoint):
            return
        # Read once: the rows of a micro-batch are computed again by every action on it.
        batch.persist()
        try:
            arrow = batch.toArrow()
        finally:
            batch.unpersist()
        if found is None:
            # Empty at first: a table that is made with rows in it is made by two drivers with the rows of both.
            DeltaTable.create(str(table), arrow.schema, mode="ignore", partition_by=list(partitions) or None)
            found = DeltaTable(str(table))
            if number <= _last(found, checkpoint):
                return
        if arrow.num_rows:
            taken = CommitProperties(app_transactions=[Transaction(checkpoint, number)])
            write_deltalake(found, arrow, mode="append", commit_properties=taken)

    return append


def last_batch(table: Path, checkpoint: str) -> int:
    """The last micro-batch with rows that the table has of a checkpoint."""
    found = opened(table)
    return _last(found, checkpoint) if found is not None else NONE


def opened(table: Path) -> "DeltaTable | None":
    """As it is now; None: there is none."""
    from deltalake import DeltaTable

    return DeltaTable(str(table)) if DeltaTable.is_deltatable(str(table)) else None


def _last(table: "DeltaTable", checkpoint: str) -> int:
    version = table.transaction_version(checkpoint)
    return version if version is not None else NONE
