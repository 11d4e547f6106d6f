"""Rows of Spark as plain values, to be compared with those of the events service."""

import json
from datetime import UTC, datetime
from pathlib import Path
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


def batches_of_transactions(ledger: DataFrame, table: Path) -> dict[str, set[int]]:
    """In which micro-batches the events of each transaction are, in all resource sets together."""
    of_file = _batches_of_files(table)
    found: dict[str, set[int]] = {}
    for transaction, path in ledger.select("transaction", "_metadata.file_path").distinct().collect():
        found.setdefault(transaction, set()).add(of_file[Path(path).name])
    return found


def _batches_of_files(table: Path) -> dict[str, int]:
    """What `_spark_metadata` says. A compacted log lists the files of all batches up to its own."""
    logs = [one for one in (table / "_spark_metadata").glob("[0-9]*") if one.suffix in {"", ".compact"}]
    found: dict[str, int] = {}
    for log in sorted(logs, key=lambda one: int(one.stem)):
        for line in log.read_text().splitlines()[1:]:
            found.setdefault(Path(json.loads(line)["path"]).name, int(log.stem))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    # Spark gives local times without a zone.
    return value.astimezone(UTC) if isinstance(value, datetime) else value
