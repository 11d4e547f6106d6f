"""A Delta table, by the `deltalake` package: no plug-in for the JVM.

Law: a micro-batch and its number are one commit. The table's log keeps the highest number of each checkpoint (Delta's
*application transaction*), and a batch that is not above it is there already. A commit is made upon the version of the table that
was looked at: it fails if another driver has taken a batch of the same checkpoint since. Batches without rows make no commit, so
the checkpoint keeps the last number with rows, once the table has it: a table that has less was set back.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from services.pipeline.checkpoint import NONE, Checkpoint

if TYPE_CHECKING:
    from deltalake import DeltaTable


def to_delta(
    rows: DataFrame, table: Path, partitions: Sequence[str], checkpoint: Checkpoint, name: str
) -> DataStreamWriter:
    """A writer of appended rows. A micro-batch passes through the driver's memory: `maxEvents` is its limit.

    `name`: the checkpoint's.
    """
    append = append_once(table, partitions, checkpoint, name)
    return rows.writeStream.outputMode("append").foreachBatch(append)


def append_once(
    table: Path, partitions: Sequence[str], checkpoint: Checkpoint, name: str
) -> Callable[[DataFrame, int], None]:
    """What is done with each micro-batch and its number."""

    def append(batch: DataFrame, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        # Before the table is looked at, which another driver may write to meanwhile.
        written = checkpoint.written
        found = opened(table)
        if found is None and number:
            raise RuntimeError(f"{table} is gone, and the micro-batches before {number} with it")
        last = _last(found, name) if found is not None else NONE
        if last < written:
            raise RuntimeError(f"{table} was set back to micro-batch {last}: it had those up to {written}")
        if number <= last:
            checkpoint.keep_written(last)
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
            if number <= _last(found, name):
                return
        if arrow.num_rows:
            taken = CommitProperties(app_transactions=[Transaction(name, number)])
            write_deltalake(found, arrow, mode="append", commit_properties=taken)
            checkpoint.keep_written(number)

    return append


def last_batch(table: Path, name: str) -> int:
    """The last micro-batch with rows that the table has of the checkpoint of that name."""
    found = opened(table)
    return _last(found, name) if found is not None else NONE


def opened(table: Path) -> "DeltaTable | None":
    """As it is now; None: there is none."""
    from deltalake import DeltaTable

    return DeltaTable(str(table)) if DeltaTable.is_deltatable(str(table)) else None


def _last(table: "DeltaTable", name: str) -> int:
    version = table.transaction_version(name)
    return version if version is not None else NONE
