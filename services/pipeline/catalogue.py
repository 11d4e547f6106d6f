"""The jobs by name: what each makes of events, and how its table is laid out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from services.pipeline.jobs.backlog import backlog
from services.pipeline.jobs.ledger import PARTITIONS, ledger
from services.pipeline.jobs.metrics import metrics
from services.pipeline.jobs.time_in_queue import time_in_queue
from services.pipeline.settings import JobSettings


@dataclass(frozen=True, slots=True)
class Job:
    """One streaming query."""

    name: str
    make: Callable[[DataFrame, JobSettings], DataFrame]
    partitions: tuple[str, ...] = ()
    with_content: bool = False
    """It reads bodies or properties."""
    is_timed: bool = False
    """It closes windows by commit time: no event may come later than its watermark waits.

    A micro-batch ends at one commit time in all sets, however small it is. Only what a transaction in doubt holds back lies
    behind, for HOLD_SECONDS at most. Other jobs hold for ever, and see nothing in part.
    """


JOBS = {
    job.name: job
    for job in (
        Job("ledger", lambda events, _settings: ledger(events), PARTITIONS, with_content=True),
        Job("metrics", metrics, with_content=True, is_timed=True),
        Job("backlog", backlog, is_timed=True),
        Job("time_in_queue", time_in_queue, is_timed=True),
    )
}
AUDIT = "audit"
"""Not a query of its own: it looks at what the ledger has."""
NAMES = (*JOBS, AUDIT)


def make(job: Job, settings: JobSettings) -> Callable[[DataFrame], DataFrame]:
    """The job as a function of events alone."""
    return partial(_made, job, settings)


def _made(job: Job, settings: JobSettings, events: DataFrame) -> DataFrame:
    return job.make(events, settings)
