"""The command line: `run JOB...` and `report`.

Law: with `run --check` the exit status is 2 if the audit found anything; a query or a call that failed is status 1, with one
sentence.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from lockstep.core.counted import counted
from lockstep.core.errors import LockstepError
from services.pipeline.catalogue import AUDIT, JOBS, NAMES
from services.pipeline.options import MAX_EVENTS
from services.pipeline.running import SINKS, RunSettings, run
from services.pipeline.settings import (
    AGE_SECONDS_MAX,
    TRIGGER_SECONDS,
    WATERMARK_SECONDS,
    WINDOW_SECONDS,
    JobSettings,
)
from services.pipeline.stopping import INTERRUPTED, SPARK_FAILS, Stopped, Stopping, end_jvm
from services.pipeline.tls_options import TlsOptions

VIOLATED = 2
"""Exit status."""


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """The exit status. `spark`: a session of the caller's, who stops it; None: one of our own."""
    given = _parser().parse_args(arguments)
    stopping = Stopping()
    try:
        settings = _settings(given)
        own = _session(given.master, stopping) if spark is None else contextlib.nullcontext(spark)
        with own as session:
            if given.command == "run":
                return _run(session, settings, given, stopping)
            return _report(session, settings, given)
    except (LockstepError, OSError, ValueError, psycopg.Error, *SPARK_FAILS) as error:
        sys.stderr.write(f"lockstep pipeline: {error}\n")
        return 1
    except Stopped:
        return INTERRUPTED


def _run(spark: SparkSession, settings: RunSettings, given: argparse.Namespace, stopping: Stopping) -> int:
    is_audited = AUDIT in given.jobs
    # The audit looks at what the ledger has.
    queries = [name for name in JOBS if name in given.jobs or (is_audited and name == "ledger")]
    try:
        run(spark, queries, settings, stopping)
    except Stopped:
        if not settings.follow:
            raise
    if not is_audited:
        return 0
    from services.pipeline.auditing import audit_ledger

    found = audit_ledger(spark, settings)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found["by_kind"].items()) or "no violation"
    sys.stdout.write(f"audit: {counted(found['events'], 'event')}, {kinds}\n")
    # Whoever is stopped while the report is drawn has said it.
    sys.stdout.flush()
    if given.report is not None:
        _report(spark, settings, given)
    return VIOLATED if given.check and found["violations"] else 0


def _report(spark: SparkSession, settings: RunSettings, given: argparse.Namespace) -> int:
    from services.pipeline.report import write_report

    sys.stdout.write(f"report: {write_report(spark, settings, given.report)}\n")
    return 0


@contextlib.contextmanager
def _session(master: str, stopping: Stopping) -> Iterator[SparkSession]:
    """Of this process, with its JVM: both are gone behind it."""
    from services.pipeline.session import make_session

    stopping.begin()
    try:
        spark = make_session(master, starting=stopping.noted())
        try:
            yield spark
        finally:
            with contextlib.suppress(*SPARK_FAILS):
                spark.stop()
    finally:
        end_jvm()


def _settings(given: argparse.Namespace) -> RunSettings:
    if given.sink == "postgres" and not given.postgres:
        raise ValueError("--sink postgres needs --postgres, the URL of the database")
    return RunSettings(
        brokers=given.brokers,
        output=given.output.resolve(),
        group=given.group,
        start=given.start,
        sink=given.sink,
        postgres=given.postgres,
        follow=given.follow,
        trigger_seconds=given.trigger_seconds,
        max_events=given.max_events,
        tls=TlsOptions(given.tls_ca_file, given.tls_certificate_file, given.tls_key_file),
        jobs=JobSettings(given.window_seconds, given.watermark_seconds, given.age_seconds_max),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep pipeline", description="Committed events into tables, metrics and audits, with Spark."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run jobs over what is committed, or go on with --follow")
    running.add_argument("jobs", nargs="+", choices=NAMES, metavar="JOB", help=f"one of {', '.join(NAMES)}")
    reporting = commands.add_parser("report", help="one HTML page with plots, from what the ledger has")
    reporting.add_argument(
        "--html",
        dest="report",
        type=Path,
        metavar="FILE",
        help="default: report.html in the output directory",
    )
    for one in (running, reporting):
        one.add_argument("--output", type=Path, default=Path("lockstep-pipeline"), metavar="DIR")
        one.add_argument("--master", default="local[*]", metavar="URL", help="local[*], or spark://host:port")
        one.add_argument("--sink", choices=SINKS, default="parquet")
        one.add_argument("--window-seconds", type=int, default=WINDOW_SECONDS, metavar="N")
        one.add_argument("--watermark-seconds", type=int, default=WATERMARK_SECONDS, metavar="N")
        one.add_argument("--age-seconds-max", type=int, default=AGE_SECONDS_MAX, metavar="N")
        one.set_defaults(
            brokers="", group="pipeline", start="earliest", postgres="", follow=False, tls_ca_file="",
            tls_certificate_file="", tls_key_file="", trigger_seconds=TRIGGER_SECONDS, max_events=MAX_EVENTS, check=False,
        )  # fmt: skip
    running.add_argument("--brokers", "-b", required=True, metavar="HOST:PORT[,...]")
    running.add_argument("--group", default="pipeline", metavar="NAME", help="of its durable subscriptions")
    running.add_argument("--start", default="earliest", help="of a new group: earliest, latest, or offsets")
    running.add_argument(
        "--postgres", default="", metavar="URL", help="of the database, with --sink postgres"
    )
    running.add_argument("--follow", action="store_true", help="go on until it is stopped")
    running.add_argument("--trigger-seconds", type=float, default=TRIGGER_SECONDS, metavar="N")
    running.add_argument("--max-events", type=int, default=MAX_EVENTS, metavar="N", help="of a micro-batch")
    running.add_argument("--tls-ca-file", default="", metavar="FILE", help="brokers are reached by TLS")
    running.add_argument("--tls-certificate-file", default="", metavar="FILE", help="of this client")
    running.add_argument("--tls-key-file", default="", metavar="FILE")
    running.add_argument("--check", action="store_true", help="exit status 2 if the audit finds anything")
    running.add_argument("--report", type=Path, metavar="FILE", help="with audit: draw the report, too")
    return parser
