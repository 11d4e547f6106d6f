"""The Spark session of the pipeline: settings that its jobs count on, each with its reason."""

import os
import sys

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
    master: str = "local[*]", name: str = "lockstep", settings: dict[str, str] | None = None
) -> SparkSession:
    """A session that knows the source `lockstep`. On a cluster this package is installed on every worker."""
    # Workers run the interpreter that this process runs: the one that has the package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name).config("spark.driver.memory", DRIVER_MEMORY)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    return spark
