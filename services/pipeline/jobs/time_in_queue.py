"""Time in queue: each message that left a queue, with when it came and how long it was there.

Law: arrival and departure meet by (resource set, queue, position), which is never given out twice. Streams keep an arrival for
`age_seconds_max`: a message that stays longer, or was there before the group began, has no row.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from services.pipeline.jobs.backlog import LEAVING
from services.pipeline.settings import JobSettings

PLACE = ("resource_set", "queue_id", "position_index", "position_ordinal")


def time_in_queue(events: DataFrame, settings: JobSettings) -> DataFrame:
    """One row for each message that left: `came`, `left`, `seconds`, and how (`kind`, `reason`)."""
    arrivals = (
        events.where(F.col("kind") == "enqueue")
        .select(*(F.col(name).alias(f"{name}_in") for name in PLACE), F.col("commit_time").alias("came"))
        .withWatermark("came", settings.watermark)
    )
    departures = (
        events.where(F.col("kind").isin(*LEAVING))
        .select(*PLACE, "queue", "message_id", "kind", "reason", F.col("commit_time").alias("left"))
        .withWatermark("left", settings.watermark)
    )
    meets = F.lit(True)
    for name in PLACE:
        meets = meets & (F.col(name) == F.col(f"{name}_in"))
    in_time = (F.col("left") >= F.col("came")) & (
        F.col("left") <= F.col("came") + F.expr(f"interval {settings.age_seconds_max} seconds")
    )
    return arrivals.join(departures, meets & in_time).select(
        "resource_set",
        "queue",
        "queue_id",
        "message_id",
        "kind",
        "reason",
        "came",
        "left",
        (F.unix_micros("left") / 1e6 - F.unix_micros("came") / 1e6).alias("seconds"),
    )
