"""`lockstep pipeline run --master spark://...`: executors in processes of their own, which have the package installed."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.pipeline.driver import Driver
from tests.integration.pipeline.history import History
from tests.integration.pipeline.rows import event_rows
from tests.integration.pipeline.standalone import ENVIRONMENT, standalone

RUN_SECONDS = 300.0


def test_a_ledger_made_by_a_standalone_cluster_is_the_log(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    output = tmp_path / "tables"
    with standalone(tmp_path) as master:
        driver = Driver(
            *(tmp_path / "driver.log", "services.pipeline", "run", "ledger", "--master", master),
            *("--brokers", history.brokers, "--group", "standalone", "--output", str(output)),
            environment=ENVIRONMENT,
        )
        try:
            driver.wait(RUN_SECONDS)
        finally:
            driver.kill()
        executors = [log.read_text() for log in (tmp_path / "work").glob("*/*/stderr")]
    assert event_rows(spark.read.parquet(str(output / "ledger"))) == history.rows()
    assert any("Running task" in said for said in executors), "executors did the work"
