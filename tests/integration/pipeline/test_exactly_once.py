"""Each event once, in whole transactions, while driver and brokers are killed and events keep coming.

Into Parquet; `make test-full`: into Delta and PostgreSQL, too.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockstep.client import LockstepError
from lockstep.client.events import EventsClient
from services.pipeline.auditing import audit_ledger
from services.pipeline.running import RunSettings, ledger_table, run
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.pipeline.driver import Driver
from tests.integration.pipeline.history import KEEPER, History
from tests.integration.pipeline.rows import batches_of_transactions
from tests.integration.pipeline.sink_tables import batches_in, rows_in

IS_FULL = os.environ.get("LOCKSTEP_TESTS", "") == "full"
DRIVER, BROKER = "the driver", "the serving broker"
KILLS = {
    "parquet": (DRIVER, BROKER, DRIVER, BROKER, DRIVER),
    **({"delta": (DRIVER, BROKER, DRIVER), "postgres": (DRIVER, BROKER, DRIVER)} if IS_FULL else {}),
}
"""One after the other, by sink; each driver is a JVM that has to start."""
WAIT_SECONDS = 600.0
"""A driver has to start a JVM first, on a machine that may be busy."""
PAUSE_SECONDS = 0.2
LOOK_SECONDS = 0.02


@pytest.fixture
def database(request: pytest.FixtureRequest, sink: str) -> str:
    """Of the sink; "": it needs none."""
    return request.getfixturevalue("postgres").dsn if sink == "postgres" else ""


@pytest.mark.parametrize("sink", KILLS)
async def test_a_ledger_equals_the_log_though_driver_and_serving_broker_are_killed(
    spark: SparkSession, database: str, tmp_path: Path, sink: str
) -> None:
    """The driver dies when its sink has just taken a micro-batch, before Spark has written that down."""
    async with deployed(tmp_path / "cluster", coordinators=1) as deployment:
        history = History(deployment.addresses)
        await asyncio.to_thread(history.open)
        settings = RunSettings(
            *(history.brokers, tmp_path / "tables"), group=f"killed-{sink}", sink=sink, postgres=database
        )
        stopping = asyncio.Event()
        publishing = asyncio.create_task(_publish(deployment, stopping))
        driver = Driver(tmp_path / "driver.log", "services.pipeline", *_arguments(settings))
        try:
            for place, victim in enumerate(KILLS[sink]):
                await _until_batch(settings, driver)
                # Not the batch that was under way when something else was killed, perhaps.
                await _until_batch(settings, driver)
                if victim == BROKER:
                    await _kill_serving(deployment, history)
                else:
                    driver.kill()
                    if place + 1 < len(KILLS[sink]):
                        driver.start_again()
        finally:
            stopping.set()
            driver.kill()
        await publishing
        await deployment.until_in_sync()
        # Where the last driver was killed another one goes on.
        await asyncio.to_thread(run, spark, ["ledger"], settings)
        await asyncio.to_thread(_compare, spark, settings, history)
        await _compare_with_queues(deployment, history)


def _arguments(settings: RunSettings) -> tuple[str, ...]:
    return (
        *("run", "ledger", "--brokers", settings.brokers, "--group", settings.group),
        *("--output", str(settings.output), "--sink", settings.sink, "--postgres", settings.postgres),
        *("--follow", "--trigger-seconds", "0", "--master", "local[1]"),
    )


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


async def _until_batch(settings: RunSettings, driver: Driver) -> None:
    """Until one more micro-batch is in the table."""
    known = batches_in(settings)
    deadline = time.monotonic() + WAIT_SECONDS
    while batches_in(settings) == known:
        driver.check()
        assert time.monotonic() < deadline, f"nothing within {WAIT_SECONDS:g} s:\n{driver.last_words()}"
        await asyncio.sleep(LOOK_SECONDS)


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
    """The table, read back, with the cluster's own log."""
    expected = history.rows()
    assert len(expected) > 100
    assert rows_in(spark, settings) == expected
    if settings.sink == "parquet":
        assert audit_ledger(spark, settings)["by_kind"] == {}
        batches = batches_of_transactions(ledger_table(spark, settings), settings.tables.of("ledger"))
        assert len(set().union(*batches.values())) >= len(KILLS[settings.sink])
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
