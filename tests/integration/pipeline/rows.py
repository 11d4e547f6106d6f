"""Rows of Spark as plain values, to be compared with those of the events service."""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from services.pipeline.schema import COLUMNS


def event_rows(events: DataFrame) -> list[dict[str, Any]]:
    """Those of a frame with the columns of events, in order of sets and logs."""
    names = [name for name, _ in COLUMNS]
    return [
        {name: _plain(row[name]) for name in names}
        for row in events.select(*names).orderBy("resource_set", "index", "place").collect()
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    # Spark gives local times without a zone.
    return value.astimezone(UTC) if isinstance(value, datetime) else value
