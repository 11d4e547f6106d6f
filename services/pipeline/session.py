"""The Spark session of the pipeline: settings that its jobs count on, each with its reason."""

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from services.pipeline.source import register

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # State that does not fit into memory, and checkpoints of changes only.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A resource set may be named 1: it is a text all the same.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # As many state stores per query as this: a few cores do not need 200.
    "spark.sql.shuffle.partitions": "4",
    # A query that is stopped ends, also while it waits for a plan.
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Several queries at once in one process, none of which starves.
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
DRIVER_MEMORY = "2g"


def make_session(
    master: str = "local[*]",
    name: str = "lockstep",
    settings: dict[str, str] | None = None,
    starting: AbstractContextManager[None] | None = None,
) -> SparkSession:
    """A session that knows the source `lockstep`. On a cluster this package is installed on every worker.

    `starting`: a block in which the JVM starts, if there is none yet.
    """
    # Workers run the interpreter that this process runs: the one that has the package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {"spark.driver.memory": DRIVER_MEMORY, **SETTINGS, **(settings or {})}
    configuration = SparkConf().setMaster(master).setAppName(name).setAll([*given.items()])
    interrupted = signal.getsignal(signal.SIGINT)
    with starting or nullcontext():
        SparkContext._ensure_initialized(conf=configuration)
    SparkContext.getOrCreate(configuration)
    if signal.getsignal(signal.SIGINT) is not interrupted:
        # Spark has put in its place what raises amid a call.
        signal.signal(signal.SIGINT, interrupted)
    spark = SparkSession.builder.config(conf=configuration).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    return spark
