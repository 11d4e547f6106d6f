"""The ledger: every event as it is, by date and resource set, append-only. What others are computed from, again and again."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PARTITIONS = ("date", "resource_set")


def ledger(events: DataFrame) -> DataFrame:
    """The events, each with its date (UTC)."""
    return events.withColumn("date", F.to_date("commit_time"))
