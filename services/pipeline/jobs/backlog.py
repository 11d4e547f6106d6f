"""Backlog: how many messages came into each queue and left it, window by window; and from that, how many it held.

Law: a queue's depth is counted from where the group began. Deleting a queue takes what it still held, and its id never comes
back.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from services.pipeline.settings import JobSettings

LEAVING = ("dequeue", "expire", "dead_letter")
"""Kinds of events by which one message leaves its queue."""


def backlog(events: DataFrame, settings: JobSettings) -> DataFrame:
    """One row for each window and queue in which something happened: `came`, `left`, `change`, and whether it was deleted."""
    is_leaving = F.col("kind").isin(*LEAVING)
    return (
        events.where(is_leaving | F.col("kind").isin("enqueue", "delete"))
        .where(~F.col("is_exchange"))
        .withWatermark("commit_time", settings.watermark)
        .groupBy(
            F.window("commit_time", settings.window).alias("window"), "resource_set", "queue", "queue_id"
        )
        .agg(
            _count(F.col("kind") == "enqueue").alias("came"),
            _count(is_leaving).alias("left"),
            F.max(F.col("kind") == "delete").alias("is_deleted"),
        )
        .select(
            F.col("window.start").alias("begin"),
            F.col("window.end").alias("end"),
            "resource_set",
            "queue",
            "queue_id",
            "came",
            "left",
            (F.col("came") - F.col("left")).alias("change"),
            "is_deleted",
        )
    )


def depth(changes: DataFrame) -> DataFrame:
    """Of a table of `backlog`: with `depth`, what each queue held at the end of each window. Not for streams."""
    so_far = Window.partitionBy("resource_set", "queue_id").orderBy("begin")
    return changes.withColumn(
        "depth",
        F.when(F.max("is_deleted").over(so_far), 0).otherwise(F.sum("change").over(so_far)),
    )


def _count(condition: Column) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0))
