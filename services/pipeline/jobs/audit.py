"""The audit: what must not be in a stream of committed events, and is.

Law: it trusts nothing but the events. Each flaw is named once: an event that is there twice is counted once by the other checks.
Events are those of one group from where it began to a consistent cut; whatever lies before the beginning is not missed.

| Violation | Is |
|---|---|
| `duplicated_event` | the same place of the same transaction more than once |
| `incomplete_transaction` | fewer events in a resource set than the transaction has there (P1) |
| `torn_transaction` | effects in some of the resource sets that the transaction has branches in, and none in others (P1, over several sets); a branch without durable effects looks so, too |
| `missing_enqueue` | a message left a queue that it never came into |
| `left_before_it_came` | a message left a queue before it came |
| `left_twice` | a message left its queue more than once |
| `position_twice` | a position of a queue was given out twice |
| `time_went_back` | the commit time is earlier than that of a record before it in the log |
"""  # noqa: E501 - a table's row is one line

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from services.pipeline.jobs.backlog import LEAVING
from services.pipeline.jobs.time_in_queue import PLACE

COLUMNS = ("violation", "resource_set", "index", "place", "transaction", "queue", "message_id", "detail")
USED = (
    "resource_set", "index", "place", "epoch", "commit_time", "transaction", "resource_sets", "events", "kind", "queue",
    "queue_id", "position_index", "position_ordinal", "message_id",
)  # fmt: skip
"""Columns of events that it reads: no content."""


def audit(events: DataFrame, starts: Mapping[str, int]) -> DataFrame:
    """One row for each violation, none if all is well. `starts`: the index where the group began, by resource set."""
    all_of_them = events.select(*USED)
    once = all_of_them.dropDuplicates(["resource_set", "index", "place"])
    checks = (
        _duplicated(all_of_them),
        _incomplete(once),
        _torn(once),
        _positions_twice(once),
        _departures(once, starts),
        _times(once),
    )
    return reduce(DataFrame.unionByName, checks)


def _row(violation: str | Column, detail: Column, *absent: str) -> list[Column]:
    """The columns of a violation; `absent`: those that it has nothing to say to."""
    types = {"index": "bigint", "place": "int"}
    named = F.lit(violation) if isinstance(violation, str) else violation
    values = {"violation": named, "detail": detail}
    values |= {name: F.lit(None).cast(types.get(name, "string")) for name in absent}
    return [values.get(name, F.col(name)).alias(name) for name in COLUMNS]


def _duplicated(events: DataFrame) -> DataFrame:
    counted = events.groupBy("resource_set", "index", "place").agg(
        F.count(F.lit(1)).alias("count"),
        *(F.first(name).alias(name) for name in ("transaction", "queue", "message_id")),
    )
    return counted.where("count > 1").select(
        *_row("duplicated_event", F.format_string("it is there %d times", "count"))
    )


def _incomplete(events: DataFrame) -> DataFrame:
    counted = events.groupBy("resource_set", "index", "transaction").agg(
        F.max("events").alias("events"), F.collect_set("place").alias("places")
    )
    missing = F.array_except(F.sequence(F.lit(0), F.col("events") - 1), "places")
    detail = F.format_string(
        "%d of %d events; missing places: %s",
        F.size("places"),
        "events",
        F.concat_ws(", ", F.slice(F.array_sort(missing), 1, 10).cast("array<string>")),
    )
    return counted.where(F.size("places") != F.col("events")).select(
        *_row("incomplete_transaction", detail, "place", "queue", "message_id")
    )


def _torn(events: DataFrame) -> DataFrame:
    """What was rolled back leaves no trace in sets where it ended with its epoch."""
    is_rollback = F.col("kind") == "rollback"
    counted = (
        events.where("resource_sets > 1")
        .groupBy("transaction")
        .agg(
            F.max("resource_sets").alias("wanted"),
            F.array_sort(F.collect_set(F.when(~is_rollback, F.col("resource_set")))).alias("sets"),
            F.array_sort(F.collect_set(F.when(is_rollback, F.col("resource_set")))).alias("undone"),
        )
    )
    detail = F.format_string(
        "events in %d of %d resource sets: %s; rolled back in: %s",
        F.size("sets"),
        "wanted",
        F.concat_ws(", ", "sets"),
        F.concat_ws(", ", "undone"),
    )
    return counted.where((F.size("sets") > 0) & (F.size("sets") < F.col("wanted"))).select(
        *_row("torn_transaction", detail, "resource_set", "index", "place", "queue", "message_id")
    )


def _positions_twice(events: DataFrame) -> DataFrame:
    return _more_than_once(
        events.where("kind = 'enqueue'"), "position_twice", "the position was given out %d times"
    )


def _departures(events: DataFrame, starts: Mapping[str, int]) -> DataFrame:
    departures = events.where(F.col("kind").isin(*LEAVING))
    arrivals = (
        events.where("kind = 'enqueue'").groupBy(*PLACE).agg(F.min(F.struct("index", "place")).alias("came"))
    )
    joined = departures.join(arrivals, list(PLACE), "left")
    # A position carries the index of the record that made its message visible.
    begins = F.lit(0)
    for name, index in sorted(starts.items()):
        begins = F.when(F.col("resource_set") == name, index).otherwise(begins)
    is_missed = F.col("came").isNull() & (F.col("position_index") > begins)
    is_early = F.struct("index", "place") < F.col("came")
    violation = F.when(is_missed, "missing_enqueue").when(is_early, "left_before_it_came")
    detail = F.when(is_missed, F.concat(F.lit("it left as "), "kind", F.lit(" and never came"))).otherwise(
        F.format_string("it came by record %d", F.col("came.index"))
    )
    wrong = joined.where(violation.isNotNull()).select(*_row(violation, detail))
    return wrong.unionByName(_more_than_once(departures, "left_twice", "it left %d times"))


def _more_than_once(events: DataFrame, violation: str, detail: str) -> DataFrame:
    counted = events.groupBy(*PLACE).agg(
        F.count(F.lit(1)).alias("count"),
        *(F.max_by(name, "index").alias(name) for name in ("place", "transaction", "queue", "message_id")),
        F.max("index").alias("index"),
    )
    return counted.where("count > 1").select(*_row(violation, F.format_string(detail, "count")))


def _times(events: DataFrame) -> DataFrame:
    in_order = Window.partitionBy("resource_set").orderBy("index")
    records = events.groupBy("resource_set", "index", "transaction").agg(
        F.min("commit_time").alias("commit_time")
    )
    before = records.withColumn("before", F.lag("commit_time").over(in_order))
    return before.where("commit_time < before").select(
        *_row(
            "time_went_back",
            F.concat(F.col("commit_time").cast("string"), F.lit(" behind "), F.col("before").cast("string")),
            "place",
            "queue",
            "message_id",
        )
    )
