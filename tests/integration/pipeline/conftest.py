"""One cluster with a history for all tests of the jobs."""

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from services.pipeline.running import RunSettings, run
from services.pipeline.settings import JobSettings
from tests.integration.cluster import deployed
from tests.integration.pipeline.history import History, depths, play


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Generator[History]:
    """A cluster of three brokers and three sets, with events of every kind."""
    with asyncio.Runner() as runner:
        deployment_of = deployed(tmp_path_factory.mktemp("cluster"), coordinators=1)
        deployment = runner.run(deployment_of.__aenter__())
        try:
            history = History(deployment.addresses)
            history.open()

            async def make() -> None:
                async with deployment.client() as client:
                    await play(client)
                    history.depths = await depths(client)

            runner.run(make())
            yield history
        finally:
            runner.run(deployment_of.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def settings(history: History, tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    """Of a run over the history; windows of one second, closed a second later."""
    jobs = JobSettings(window_seconds=1, watermark_seconds=1, age_seconds_max=600)
    return RunSettings(history.brokers, tmp_path_factory.mktemp("tables"), max_events=500, jobs=jobs)


@pytest.fixture(scope="session")
def events(spark: SparkSession, history: History) -> DataFrame:
    """All events, read as a batch."""
    reader = spark.read.format("lockstep").options(brokers=history.brokers, group="batch", start="earliest")
    return reader.load().persist()


@pytest.fixture(scope="session")
def run_job(spark: SparkSession, settings: RunSettings) -> Callable[[str], DataFrame]:
    """Runs a job once and gives its table."""
    done: dict[str, Any] = {}

    def run_once(name: str) -> DataFrame:
        if name not in done:
            run(spark, [name], settings)
            done[name] = spark.read.parquet(str(Path(settings.output) / name)).persist()
        table: DataFrame = done[name]
        return table

    return run_once
