"""Parquet files in a directory.

Law: what is there is what `_spark_metadata` lists, and Spark reads nothing else of the directory. Files of a micro-batch that
did not end are left over, and listed nowhere: only who reads through Spark sees each row once.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from services.pipeline.checkpoint import last_number


def to_parquet(rows: DataFrame, directory: Path, partitions: Sequence[str]) -> DataStreamWriter:
    """A writer of appended rows into `directory`."""
    writer = rows.writeStream.format("parquet").option("path", str(directory)).outputMode("append")
    return writer.partitionBy(*partitions) if partitions else writer


def last_batch(directory: Path) -> int:
    """The last micro-batch that the table has."""
    return last_number(directory / "_spark_metadata")
