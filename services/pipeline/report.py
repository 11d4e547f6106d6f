"""The report: one HTML page with its pictures inside, of what the ledger has and what the last audit found.

Law: it is computed from the ledger, by the same functions as the streams, so it has the last windows too, which a stream keeps
open.
"""

import base64
import html
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.core.counted import counted
from services.pipeline.jobs.backlog import backlog, depth
from services.pipeline.jobs.metrics import metrics
from services.pipeline.jobs.time_in_queue import time_in_queue
from services.pipeline.running import RunSettings, ledger_table
from services.pipeline.settings import JobSettings

WINDOWS_SHOWN = 200
"""About so many points across a picture."""
QUEUES_SHOWN = 12
"""The deepest."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "img{max-width:100%}table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:left;"
    "border-bottom:1px solid #ddd}.good{color:#176b2c}.bad{color:#a31515}"
)


def write_report(spark: SparkSession, settings: RunSettings, path: Path | None = None) -> Path:
    """Writes the page and returns where it is. Raises `ValueError` where the ledger cannot be read."""
    events = ledger_table(spark, settings).persist()
    try:
        page = _page(events, _fitting(events, settings.jobs), _audit(settings))
    finally:
        events.unpersist()
    target = path or settings.output / "report.html"
    target.write_text(page)
    return target


def _fitting(events: DataFrame, settings: JobSettings) -> JobSettings:
    """Windows so long that a picture has about WINDOWS_SHOWN of them, and at least a second."""
    bounds = events.agg(
        F.unix_micros(F.min("commit_time")).alias("first"), F.unix_micros(F.max("commit_time")).alias("last")
    ).first()
    if bounds is None or bounds["first"] is None:
        return settings
    seconds = (bounds["last"] - bounds["first"]) / 1e6 / WINDOWS_SHOWN
    return JobSettings(max(1, round(seconds)), settings.watermark_seconds, settings.age_seconds_max)


def _page(events: DataFrame, settings: JobSettings, audit: str) -> str:
    measured = _frame(metrics(events, settings))
    parts = [
        _summary(events),
        "<h2>Audit</h2>",
        audit,
        "<h2>Throughput</h2>",
        _picture(lambda axes: _throughput(axes, measured, settings.window_seconds), measured),
        "<h2>Commit latency</h2>",
        _picture(lambda axes: _latency(axes, measured), measured[measured["commits"] > 0]),
        "<h2>Backlog</h2>",
        _backlog(events, settings),
        "<h2>Time in queue</h2>",
        _time_in_queue(events, settings),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lockstep pipeline</title>'
        f"<style>{_STYLE}</style></head><body><h1>Committed events</h1>{''.join(parts)}</body></html>\n"
    )


def _frame(rows: DataFrame) -> pd.DataFrame:
    frame: pd.DataFrame = rows.toPandas()
    return frame


def _summary(events: DataFrame) -> str:
    rows = (
        events.groupBy("resource_set")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.sum(F.when((F.col("place") == 0) & (F.col("kind") != "rollback"), 1).otherwise(0)).alias(
                "commits"
            ),
            F.sum(F.when(F.col("kind") == "rollback", 1).otherwise(0)).alias("rollbacks"),
            F.date_format(F.min("commit_time"), "yyyy-MM-dd HH:mm:ss").alias("first"),
            F.date_format(F.max("commit_time"), "yyyy-MM-dd HH:mm:ss").alias("last"),
        )
        .orderBy("resource_set")
        .collect()
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"<p>Made at {made} UTC.</p>" + _table(
        ("resource set", "events", "commits (with commands)", "rollbacks", "first commit", "last commit"),
        [list(row) for row in rows],
    )


def _audit(settings: RunSettings) -> str:
    path = settings.tables.audit
    if not path.exists():
        return "<p>No audit has run: <code>lockstep pipeline run audit</code>.</p>"
    found = json.loads(path.read_text())
    if not found["violations"]:
        return f'<p class="good">No violation in {counted(found["events"], "event")}.</p>'
    shown = [
        [row["violation"], row["transaction"], row["queue"], row["detail"]] for row in found["rows"][:50]
    ]
    return (
        f'<p class="bad">{counted(found["violations"], "violation")} in {counted(found["events"], "event")}.</p>'
        + _table(("violation", "transaction", "queue", "detail"), shown)
    )


def _table(names: tuple[str, ...], rows: list[list[Any]]) -> str:
    def cells(tag: str, values: Any) -> str:
        shown = (
            f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
            for value in values
        )
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in shown) + "</tr>"

    return f"<table>{cells('th', names)}{''.join(cells('td', row) for row in rows)}</table>"


def _picture(draw: Callable[[Any], None], rows: pd.DataFrame) -> str:
    if rows.empty:
        return "<p>Nothing to show.</p>"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}">'


def _throughput(axes: Any, measured: pd.DataFrame, seconds: int) -> None:
    """Events of each set a second, and commits of all."""
    columns = ["enqueued", "dequeued", "commits", "rollbacks"]
    summed = _on_a_line(measured.groupby("begin")[columns].sum(), seconds) / seconds
    for name in columns:
        axes.plot(summed.index, summed[name], label=f"{name} a second")
    axes.set_ylabel(f"a second, over {seconds} s")


def _on_a_line(rows: pd.DataFrame, seconds: int) -> pd.DataFrame:
    """With the windows in which nothing happened."""
    whole = pd.date_range(rows.index.min(), rows.index.max(), freq=f"{seconds}s")
    return rows.reindex(whole, fill_value=0)


def _latency(axes: Any, measured: pd.DataFrame) -> None:
    """The worst of all sets and queues in each window: nothing is averaged away."""
    with_commits = measured[measured["commits"] > 0]
    for name in ("commit_ms_p50", "commit_ms_p95", "commit_ms_p99"):
        worst = with_commits.groupby("begin")[name].max()
        axes.plot(
            worst.index, worst.to_numpy(), label=name.removeprefix("commit_ms_"), marker=".", markersize=3
        )
    axes.set_ylabel("ms, first operation to commit")
    axes.set_yscale("symlog", linthresh=1)


def _backlog(events: DataFrame, settings: JobSettings) -> str:
    changes = _frame(depth(backlog(events, settings)))

    def draw(axes: Any) -> None:
        deepest = changes.groupby(["resource_set", "queue"])["depth"].max().nlargest(QUEUES_SHOWN).index
        for resource_set, queue in deepest:
            rows = changes[
                (changes["resource_set"] == resource_set) & (changes["queue"] == queue)
            ].sort_values("begin")
            axes.step(rows["end"], rows["depth"], where="post", label=f"{queue} ({resource_set})")
        axes.set_ylabel("messages")

    return _picture(draw, changes)


def _time_in_queue(events: DataFrame, settings: JobSettings) -> str:
    left = time_in_queue(events, settings)
    percentiles = [place / 100 for place in range(101)]
    row = left.agg(
        F.percentile_approx("seconds", percentiles, 1000).alias("seconds"), F.count("*").alias("count")
    ).first()
    seconds = row["seconds"] if row is not None else None
    curve = pd.DataFrame({"seconds": seconds or []})

    def draw(axes: Any) -> None:
        axes.plot(curve["seconds"], [100 * one for one in percentiles])
        axes.set_xscale("symlog", linthresh=0.001)
        axes.set_xlabel(f"seconds, of {counted(row['count'] if row is not None else 0, 'message')} that left")
        axes.set_ylabel("% at most")

    return _picture(draw, curve)
