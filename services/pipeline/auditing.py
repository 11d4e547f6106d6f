"""The audit of a ledger: its violations, written down and counted."""

import json
from collections import Counter
from typing import Any

from pyspark.sql import SparkSession

from services.pipeline.jobs.audit import audit
from services.pipeline.running import RunSettings, ledger_table

SHOWN_MAX = 100
"""Violations that the summary has: enough to see what is wrong."""


def audit_ledger(spark: SparkSession, settings: RunSettings) -> dict[str, Any]:
    """Audits all that the ledger has. Writes the table `violations` beside it, and returns and writes the summary."""
    events = ledger_table(spark, settings)
    found = audit(events, settings.tables.began("ledger", settings.sink)).persist()
    try:
        counts: Counter[str] = Counter(
            {row["violation"]: row["count"] for row in found.groupBy("violation").count().collect()}
        )
        found.write.mode("overwrite").parquet(str(settings.tables.violations))
        shown = [row.asDict() for row in found.limit(SHOWN_MAX).collect()]
    finally:
        found.unpersist()
    result = {
        "events": events.count(),
        "violations": sum(counts.values()),
        "by_kind": dict(sorted(counts.items())),
        "rows": shown,
    }
    settings.tables.audit.write_text(json.dumps(result, indent=1))
    return result
