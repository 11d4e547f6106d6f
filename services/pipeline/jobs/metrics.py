"""Metrics: what was committed in each window of commit time, by resource set and queue.

Law: an event counts in one row, and a transaction in one row of each of its resource sets: that of the queue of its first event
there. So sums over queues are true.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from services.pipeline.settings import JobSettings

PERCENTILES = (0.5, 0.95, 0.99)


def metrics(events: DataFrame, settings: JobSettings) -> DataFrame:
    """One row for each window, resource set and queue (null: rollbacks, which are of none).

    `commits` are transactions, with `commit_ms`, the percentiles 50, 95 and 99 of the time from their first operation to their
    commit; `commands` were committed outside any. Streams give a window when the watermark has passed it.
    """
    is_first = F.col("place") == 0
    is_rollback = F.col("kind") == "rollback"
    is_command = F.col("transaction") == F.concat_ws(
        "", "resource_set", F.lit("/"), "index", F.lit("."), "epoch"
    )
    is_commit = is_first & ~is_rollback & ~is_command
    size = F.coalesce(F.length("body"), F.lit(0)) + F.coalesce(F.length("properties"), F.lit(0))
    is_enqueue = F.col("kind") == "enqueue"
    return (
        events.withWatermark("commit_time", settings.watermark)
        .groupBy(F.window("commit_time", settings.window).alias("window"), "resource_set", "queue")
        .agg(
            _count(is_commit).alias("commits"),
            _count(is_first & is_command & ~is_rollback).alias("commands"),
            _count(is_rollback).alias("rollbacks"),
            _count(is_enqueue).alias("enqueued"),
            _count(F.col("kind") == "dequeue").alias("dequeued"),
            _count(F.col("kind") == "expire").alias("expired"),
            _count(F.col("kind") == "dead_letter").alias("dead_lettered"),
            F.sum(F.when(is_enqueue, size).otherwise(0)).alias("bytes"),
            F.percentile_approx(F.when(is_commit, F.col("duration_ms")), list(PERCENTILES)).alias(
                "commit_ms"
            ),
        )
        .select(
            F.col("window.start").alias("begin"),
            F.col("window.end").alias("end"),
            "resource_set",
            "queue",
            "commits",
            "commands",
            "rollbacks",
            (F.col("commits") / settings.window_seconds).alias("commits_per_second"),
            (F.col("rollbacks") / settings.window_seconds).alias("rollbacks_per_second"),
            "enqueued",
            "dequeued",
            "expired",
            "dead_lettered",
            "bytes",
            *(
                F.col("commit_ms")[place].alias(f"commit_ms_p{round(100 * percentile)}")
                for place, percentile in enumerate(PERCENTILES)
            ),
        )
    )


def _count(condition: Column) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0))
