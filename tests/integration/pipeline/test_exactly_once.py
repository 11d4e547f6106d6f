"""Each event once, in whole transactions, while driver and brokers are killed and events keep coming."""

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from lockstep.client import LockstepError
from lockstep.client.events import EventsClient
from services.pipeline.auditing import audit_ledger
from services.pipeline.running import RunSettings
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.pipeline.driver import Driver, batches_done, ledger_arguments
from tests.integration.pipeline.history import KEEPER, History
from tests.integration.pipeline.rows import batches_of_transactions, event_rows

DRIVER_KILLS = 3
BROKER_KILLS = 2
BATCHES_BETWEEN = 2
"""Micro-batches that end between two kills."""
WAIT_SECONDS = 600.0
"""A driver has to start a JVM first, on a machine that may be busy."""
PAUSE_SECONDS = 0.05


async def test_the_ledger_equals_the_log_though_the_driver_is_killed_three_times_and_the_serving_broker_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with deployed(tmp_path / "cluster", coordinators=1) as deployment:
        history = History(deployment.addresses)
        await asyncio.to_thread(history.open)
        settings = RunSettings(history.brokers, tmp_path / "tables", max_events=2000)
        stopping = asyncio.Event()
        publishing = asyncio.create_task(_publish(deployment, stopping))
        driver = Driver(
            tmp_path / "driver.log", *ledger_arguments(settings, "--follow", "--trigger-seconds", "0")
        )
        try:
            for kill in range(DRIVER_KILLS + BROKER_KILLS):
                await _until_batches(settings, driver)
                if kill % 2 == 0:
                    driver.kill_and_start()
                else:
                    await _kill_serving(deployment, history)
            await _until_batches(settings, driver)
        finally:
            stopping.set()
            driver.kill()
        await publishing
        await deployment.until_in_sync()
        last = Driver(tmp_path / "last.log", *ledger_arguments(settings))
        await asyncio.to_thread(last.wait, WAIT_SECONDS)
        await asyncio.to_thread(_compare, spark, settings, history)
        await _compare_with_queues(deployment, history)


async def _publish(deployment: Deployment, stopping: asyncio.Event) -> None:
    """Transactions of one set, and of all three, until it is stopped; whoever fails begins again."""
    async with deployment.client() as client, client.session() as session:
        for name in SETS:
            await session.declare_queue(f"{name}-q", set_name=name)
        number = 0
        while not stopping.is_set():
            number += 1
            with contextlib.suppress(LockstepError):
                for name in SETS:
                    async with session.transaction() as transaction:
                        await transaction.publish(
                            f"{name}-q", [b"%d-%d" % (number, place) for place in range(5)]
                        )
                async with session.transaction() as transaction:
                    for name in SETS:
                        await transaction.publish(f"{name}-q", b"joint-%d" % number)
            await asyncio.sleep(PAUSE_SECONDS)


async def _until_batches(settings: RunSettings, driver: Driver) -> None:
    table = settings.tables.of("ledger")
    wanted = batches_done(table) + BATCHES_BETWEEN
    deadline = time.monotonic() + WAIT_SECONDS
    while batches_done(table) < wanted:
        driver.check()
        said = driver.log.read_text()[-3000:]
        assert time.monotonic() < deadline, (
            f"no {BATCHES_BETWEEN} micro-batches within {WAIT_SECONDS:g} s:\n{said}"
        )
        await asyncio.sleep(0.2)


async def _kill_serving(deployment: Deployment, history: History) -> None:
    """Kills the broker that a plan names first, and starts it again."""

    def serving() -> str:
        with EventsClient(history.addresses) as client:
            return client.plan(KEEPER, history.began).ranges[0].brokers[0]

    address = await asyncio.to_thread(serving)
    name = next(name for name, local in deployment.cluster.brokers.items() if local.address == address)
    await deployment[name].broker.kill()
    await asyncio.sleep(1)
    await deployment.cluster.start_broker(name)


def _compare(spark: SparkSession, settings: RunSettings, history: History) -> None:
    """The sink, read back through Spark, with the cluster's own log."""
    path = settings.tables.of("ledger")
    ledger = spark.read.parquet(str(path))
    expected = history.rows()
    assert len(expected) > 100
    assert event_rows(ledger) == expected
    assert audit_ledger(spark, settings)["by_kind"] == {}
    batches = batches_of_transactions(ledger, path)
    assert len(set().union(*batches.values())) >= BATCHES_BETWEEN * (DRIVER_KILLS + BROKER_KILLS)
    torn = {name: found for name, found in batches.items() if len(found) > 1}
    assert torn == {}, "a cut goes through a transaction"


async def _compare_with_queues(deployment: Deployment, history: History) -> None:
    """What browsing the queues shows is what the events say came and did not leave."""
    rows = await asyncio.to_thread(history.rows)
    expected = Counter((row["queue"], row["body"]) for row in rows if row["kind"] == "enqueue")
    async with deployment.client() as client, client.session() as session:
        found = Counter(
            [(f"{name}-q", message.body) for name in SETS async for message in session.browse(f"{name}-q")]
        )
    assert found == expected
