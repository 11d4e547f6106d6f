"""The audit over a real log to which something was done: it finds exactly that."""

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from services.pipeline.jobs.audit import USED, audit
from services.pipeline.jobs.backlog import LEAVING
from tests.integration.pipeline.history import History

Found = list[tuple[str, str | None, int | None, int | None]]


@pytest.fixture(scope="module")
def log(events: DataFrame) -> DataFrame:
    """As it was committed, with the number of resource sets of joint transactions."""
    is_joint = F.col("global_id").isNotNull()
    known = events.withColumn("resource_sets", F.when(is_joint, 3).otherwise(F.col("resource_sets")))
    return known.select(*USED).persist()


@pytest.fixture(scope="module")
def rows(history: History) -> list[dict[str, Any]]:
    return history.rows()


def found(log: DataFrame, history: History) -> Found:
    starts = {name: offset.index for name, offset in history.began.items()}
    rows = audit(log, starts).collect()
    return sorted(
        ((row["violation"], row["resource_set"], row["index"], row["place"]) for row in rows), key=str
    )


def is_event(row: dict[str, Any]) -> Any:
    return (
        (F.col("resource_set") == row["resource_set"])
        & (F.col("index") == row["index"])
        & (F.col("place") == row["place"])
    )


def is_record(row: dict[str, Any]) -> Any:
    return (F.col("resource_set") == row["resource_set"]) & (F.col("index") == row["index"])


def joint(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["global_id"] and row["resource_set"] == name and row["place"] == 1)


def alone_and_gone(rows: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """An enqueue that is a command by itself, and the event by which its message left."""
    for row in rows:
        if row["kind"] == "enqueue" and row["events"] == 1 and row["resource_set"] == name:
            for other in rows:
                is_same = (other["queue_id"], other["message_id"]) == (row["queue_id"], row["message_id"])
                if is_same and other["kind"] in LEAVING:
                    return row, other
    raise AssertionError(f"no message of {name} came by itself and left")


def test_a_good_log_has_no_violation(log: DataFrame, history: History) -> None:
    assert found(log, history) == []


def test_a_torn_transaction_a_duplicate_and_a_missing_event_are_found_and_nothing_else(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    torn = joint(rows, "west")
    twice = next(row for row in rows if row["kind"] == "enqueue" and row["queue"] == "east-in")
    lost, left = alone_and_gone(rows, "north")
    harmed = log.where(~is_event(torn) & ~is_event(lost)).unionByName(log.where(is_event(twice)))
    assert found(harmed, history) == [
        ("duplicated_event", "east", twice["index"], twice["place"]),
        ("incomplete_transaction", "west", torn["index"], None),
        ("missing_enqueue", "north", left["index"], left["place"]),
    ]


def test_a_transaction_that_lacks_one_of_its_sets_is_torn(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    harmed = log.where(~is_record(joint(rows, "west")))
    assert found(harmed, history) == [("torn_transaction", None, None, None)]


def test_a_transaction_that_is_rolled_back_in_one_of_its_sets_is_torn(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    row = joint(rows, "west")
    undone = log.where(~is_event(row)).withColumns(
        {
            "kind": F.when(is_record(row), F.lit("rollback")).otherwise(F.col("kind")),
            "events": F.when(is_record(row), 1).otherwise(F.col("events")),
        }
    )
    assert found(undone, history) == [("torn_transaction", None, None, None)]
    # Where the others ended with their epoch, there is nothing to see of them.
    is_elsewhere = (F.col("transaction") == row["transaction"]) & (F.col("resource_set") != "west")
    assert found(undone.where(~is_elsewhere), history) == []


def test_a_message_that_leaves_twice_or_too_early_is_found(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    _, left = alone_and_gone(rows, "east")
    again = log.where(is_event(left)).withColumns(
        {
            "index": F.lit(10**9).cast("bigint"),
            "place": F.lit(0),
            "events": F.lit(1),
            "commit_time": F.expr("commit_time + interval 1 day"),
        }
    )
    assert found(log.unionByName(again), history) == [("left_twice", "east", 10**9, 0)]
    came, left = alone_and_gone(rows, "west")
    is_late = is_event(came)
    late = log.withColumn("index", F.when(is_late, F.lit(10**9).cast("bigint")).otherwise(F.col("index")))
    late = late.withColumn(
        "commit_time",
        F.when(F.col("index") == 10**9, F.expr("commit_time + interval 1 day")).otherwise(
            F.col("commit_time")
        ),
    )
    assert found(late, history) == [("left_before_it_came", "west", left["index"], left["place"])]


def test_a_position_given_out_twice_and_time_that_goes_back_are_found(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    came, _ = alone_and_gone(rows, "east")
    again = log.where(is_event(came)).withColumn("index", F.lit(10**9).cast("bigint"))
    assert found(log.unionByName(again), history) == [
        ("position_twice", "east", 10**9, 0),
        ("time_went_back", "east", 10**9, None),
    ]


def test_what_came_before_the_group_began_is_not_missed(
    log: DataFrame, history: History, rows: list[dict[str, Any]]
) -> None:
    came, _ = alone_and_gone(rows, "east")
    later = {name: offset.index for name, offset in history.began.items()} | {"east": came["index"]}
    behind = log.where((F.col("resource_set") != "east") | (F.col("index") > came["index"]))
    assert audit(behind, later).count() == 0
