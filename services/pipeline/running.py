"""Running jobs: one streaming query for each, from a group of its own into a table of its own.

Law: a query acknowledges what is in its sink, and nothing else does. Spark says so one batch late, and of the last batch not at
all; that one is acknowledged when its query has ended well. And no window loses an event silently.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lockstep.core.counted import counted
from services.pipeline.catalogue import JOBS, Job
from services.pipeline.checkpoint import NONE, Checkpoint
from services.pipeline.options import MAX_EVENTS, SourceOptions, offsets_from
from services.pipeline.settings import HOLD_SECONDS, TRIGGER_SECONDS, JobSettings
from services.pipeline.sinks import delta, parquet, postgres
from services.pipeline.sinks.delta import to_delta
from services.pipeline.sinks.parquet import to_parquet
from services.pipeline.sinks.postgres import to_postgres
from services.pipeline.source import NAME
from services.pipeline.stopping import SPARK_FAILS, Stopping
from services.pipeline.tables import Tables
from services.pipeline.tls_options import TlsOptions

SINKS = ("parquet", "delta", "postgres")
LOOK_SECONDS = 1
"""Each query that runs is looked at for so long, one after the other; a run that is stopped ends no sooner."""


SLOW_WORKER = "Python worker failed to connect back"
"""What Spark says when a Python process needs more than 10 s to start, and waits no longer: the machine is busy."""
SLOW_STARTS_MAX = 5
"""Of one run: then it is not only busy."""


class Look(Enum):
    """What becomes of a query."""

    RUNNING = "running"
    ENDED = "ended"
    TOO_SLOW = "too slow"
    """It is to be started again, and goes on from its checkpoint."""


class LateEvents(ValueError):
    """A query has dropped events that came later than its watermark waits: what it made of their windows is too little."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run is told."""

    brokers: str
    output: Path
    """Directory of tables and checkpoints."""
    group: str = "pipeline"
    """Each job's own group is this, a dot and its name."""
    start: str = "earliest"
    sink: str = "parquet"
    """One of SINKS; with `postgres` tables are there, and checkpoints in `output`."""
    postgres: str = ""
    """Of the database, as libpq takes it."""
    follow: bool = False
    """True: until it is stopped; False: what is committed when it begins."""
    trigger_seconds: float = TRIGGER_SECONDS
    max_events: int = MAX_EVENTS
    """Of a micro-batch, about."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    jobs: JobSettings = field(default_factory=JobSettings)

    @property
    def tables(self) -> Tables:
        return Tables(self.output)

    def options(self, job: Job) -> dict[str, str]:
        """Of the source, for a job's query."""
        return {
            "brokers": self.brokers,
            "group": f"{self.group}.{job.name}",
            "start": self.start,
            "maxEvents": str(self.max_events),
            "holdSeconds": str(HOLD_SECONDS if job.is_timed else 0),
            "withoutContent": str(not job.with_content).lower(),
            **self.tls.plain(),
        }


def run(
    spark: SparkSession, names: Sequence[str], settings: RunSettings, stopping: Stopping | None = None
) -> None:
    """Starts the queries of these jobs; returns when all have ended. Raises what one failed with, `LateEvents`, or `Stopped`."""
    stopping = stopping or Stopping()
    queries = {}
    try:
        for name in names:
            queries[name] = start(spark, JOBS[name], settings)
        with stopping.noted():
            running, slow_starts = dict(queries), 0
            while running:
                for name, query in list(running.items()):
                    if stopping.is_asked:
                        return
                    look = look_at(query, slow_starts)
                    check_late(name, query.recentProgress)
                    if look is Look.ENDED:
                        _acknowledge_last(settings, JOBS[name], running.pop(name))
                    elif look is Look.TOO_SLOW:
                        slow_starts += 1
                        queries[name] = running[name] = start(spark, JOBS[name], settings)
    finally:
        end(queries)


def end(queries: Mapping[str, StreamingQuery]) -> None:
    """Stops them, by the names of their jobs. Raises `LateEvents` where one has dropped events since it was looked at."""
    for query in queries.values():
        with contextlib.suppress(*SPARK_FAILS):
            query.stop()
    for name, query in queries.items():
        progress: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(*SPARK_FAILS):
            progress = query.recentProgress
        check_late(name, progress)


def start(spark: SparkSession, job: Job, settings: RunSettings) -> StreamingQuery:
    """The query of one job, from where its checkpoint stands. Raises `ValueError` where that fits not the group or the table."""
    options = settings.options(job)
    source = SourceOptions.parse(options)
    checkpoint = settings.tables.checkpoint(job.name, settings.sink)
    with source.connect() as client:
        stands = source.open(client) if checkpoint.planned == NONE else source.find(client)
    settings.tables.starts(job.name, settings.sink, stands)
    query = f"{settings.group}.{job.name}"
    name = checkpoint.name(query)
    _check(checkpoint, name, job, settings)
    events = spark.readStream.format(NAME).options(**options).load()
    rows = job.make(events, settings.jobs)
    table = settings.tables.of(job.name)
    match settings.sink:
        case "parquet":
            writer = to_parquet(rows, table, job.partitions)
        case "delta":
            writer = to_delta(rows, table, job.partitions, checkpoint, name)
        case _:
            writer = to_postgres(rows, settings.postgres, _in_database(job), name)
    writer = writer.queryName(query).option("checkpointLocation", str(checkpoint.directory))
    if settings.follow:
        return writer.trigger(processingTime=f"{settings.trigger_seconds} seconds").start()
    return writer.trigger(availableNow=True).start()


def _check(checkpoint: Checkpoint, name: str, job: Job, settings: RunSettings) -> None:
    """Raises `ValueError` if the table has not what the checkpoint says."""
    table = settings.tables.of(job.name)
    match settings.sink:
        case "parquet":
            checkpoint.check(str(table), parquet.last_batch(table), at_least=checkpoint.committed)
        case "delta":
            # It knows of no batch without rows. What is written is looked at first: another driver may be at it.
            written = checkpoint.written
            checkpoint.check(str(table), delta.last_batch(table, name), at_least=written)
        case "postgres":
            last = postgres.last_batch(settings.postgres, name)
            checkpoint.check(_in_database(job), last, at_least=checkpoint.committed)
        case _:
            raise ValueError(f"a sink is one of {', '.join(SINKS)}, not {settings.sink!r}")


def _in_database(job: Job) -> str:
    return f"lockstep_{job.name}"


def ledger_table(spark: SparkSession, settings: RunSettings) -> DataFrame:
    """The events that the ledger has; raises `ValueError` where it has none, or none that Spark can read."""
    path = settings.tables.of("ledger")
    match settings.sink:
        case "parquet":
            if not any(path.rglob("*.parquet")):
                raise ValueError(f"{path} has no event yet")
            return spark.read.parquet(str(path))
        case "delta":
            found = delta.opened(path)
            files = found.file_uris() if found is not None else []
            if not files:
                raise ValueError(f"{path} has no event yet")
            # Spark has no reader of Delta of its own: the table says which files are in it.
            rows = spark.read.option("basePath", str(path)).parquet(*files)
            # Directories are named in UTF-8 with escapes, and Spark takes what it finds there for characters.
            bytes_of_name = F.encode("resource_set", "ISO-8859-1")
            return rows.withColumn("resource_set", F.decode(bytes_of_name, "UTF-8"))
        case _:
            raise ValueError(
                "audit and report read a ledger in files: run the ledger with --sink parquet or delta"
            )


def look_at(query: StreamingQuery, slow_starts: int) -> Look:
    """Waits for LOOK_SECONDS at most. Raises what the query failed with. `slow_starts`: how many there were before."""
    try:
        return Look.ENDED if query.awaitTermination(LOOK_SECONDS) else Look.RUNNING
    except StreamingQueryException as error:
        if SLOW_WORKER not in str(error) or slow_starts >= SLOW_STARTS_MAX:
            raise
        return Look.TOO_SLOW


def check_late(name: str, progress: Iterable[Mapping[str, Any]]) -> None:
    """Raises `LateEvents`. `progress`: what Spark says of a query's micro-batches."""
    late = sum(
        operator["numRowsDroppedByWatermark"] for one in progress for operator in one["stateOperators"]
    )
    if late:
        raise LateEvents(
            f"{name}: {counted(late, 'row')} came later than the watermark; begin anew with a longer --watermark-seconds"
        )


def _acknowledge_last(settings: RunSettings, job: Job, query: StreamingQuery) -> None:
    progress = query.lastProgress
    sources = progress["sources"] if progress is not None else []
    end = sources[0]["endOffset"] if sources else None
    if not end:
        return
    source = SourceOptions.parse(settings.options(job))
    with source.connect() as client:
        client.acknowledge(source.group, offsets_from(json.loads(end) if isinstance(end, str) else end))
