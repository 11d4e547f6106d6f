"""The metrics of a run with a lost backup, a branch in doubt and a killed primary say all that, and when it was."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from lockstep.client.client import connect
from lockstep.client.events import Start
from lockstep.client.session import Session
from lockstep.core.errors import LockstepError
from lockstep.core.xid import Xid
from lockstep.runtime.metric_names import NAMES, Kind
from tests.integration.cluster import Deployment, deployed
from tests.integration.event_reader import reader
from tests.integration.scraper import Scraper, plot

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETS = {"east": ["B1", "B2", "B3"], "west": ["B2", "B3", "B1"]}
MIN_IN_SYNC = 2
WAITING_SECONDS = 3.0
DOUBT_SECONDS = 2.0
ARTEFACT = Path(__file__).parents[2] / "build" / "artefacts" / "metrics-of-a-failover.png"


@dataclass
class Run:
    """What was done, and what was seen of it."""

    seen: Scraper
    marks: dict[str, float] = field(default_factory=dict)
    """When each thing was done."""

    def mark(self, what: str) -> None:
        self.marks[what] = self.seen.now()

    def between(self, name: str, begin: str, end: str = "", **labels: str) -> list[float]:
        """Values seen from one mark to another, or to the end."""
        until = self.marks[end] if end else self.seen.now()
        return [
            one.value for one in self.seen.of(name, **labels) if self.marks[begin] <= one.seconds <= until
        ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Run]:
    directory = tmp_path_factory.mktemp("cluster")
    async with deployed(directory, sets=SETS, coordinators=1, proxies=1, with_metrics=True) as deployment:
        seen = Scraper(deployment.cluster.metrics_ports)
        scraping = asyncio.create_task(seen.run())
        run = Run(seen)
        try:
            async with await connect(deployment.addresses) as client, client.session() as session:
                await _do_everything(deployment, session, run)
        finally:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)
        yield run


async def _do_everything(deployment: Deployment, session: Session, run: Run) -> None:
    await session.declare_queue("east.in", set_name="east")
    await session.declare_queue("west.in", set_name="west")
    async with reader(deployment.addresses, "readers") as events:
        await events.open(Start.START_LATEST)
        writing = asyncio.create_task(_write(session))
        try:
            await _write_over_sets(session)
            await _lose_a_backup(deployment, run)
            await _stall_the_backups(deployment, run)
            await _leave_a_branch_in_doubt(session, run)
            await _kill_the_primary(deployment, session, run)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _write(session: Session) -> None:
    while True:
        with contextlib.suppress(LockstepError):
            async with session.transaction() as tx:
                await tx.publish("east.in", [b"one", b"other"])
        await asyncio.sleep(0.02)


async def _write_over_sets(session: Session) -> None:
    async with session.transaction() as tx:
        await tx.publish("east.in", [b"here"])
        await tx.publish("west.in", [b"there"])


async def _lose_a_backup(deployment: Deployment, run: Run) -> None:
    primary = await deployment.primary_of("east")
    backup = max(name for name in SETS["east"] if name != primary)
    run.mark("backup killed")
    await deployment[backup].broker.kill()
    await run.seen.until(
        "two in sync", lambda: 2.0 in run.between("lockstep_in_sync_size", "backup killed", set="east")
    )
    run.mark("backup started")
    await deployment.cluster.start_broker(backup)
    await deployment.until_in_sync()
    await run.seen.until(
        "three in sync",
        lambda: run.between("lockstep_in_sync_size", "backup started", set="east")[-1:] == [3.0],
    )


async def _stall_the_backups(deployment: Deployment, run: Run) -> None:
    primary = await deployment.primary_of("east")
    backups = [deployment[name].broker for name in SETS["east"] if name != primary]
    run.mark("backups stalled")
    for backup in backups:
        backup.stall()
    try:
        await run.seen.until(
            "fewer than the minimum are reached, and writes wait",
            lambda: (
                min(run.between("lockstep_in_sync_reachable", "backups stalled", set="east"), default=3) == 1
                and max(run.between("lockstep_commit_waiting_seconds", "backups stalled", set="east"))
                > WAITING_SECONDS
            ),
        )
    finally:
        for backup in backups:
            backup.resume()
    run.mark("backups resumed")
    await deployment.until_in_sync()
    await run.seen.until(
        "three are reached",
        lambda: run.between("lockstep_in_sync_reachable", "backups resumed", set="east")[-1:] == [3.0],
    )


async def _leave_a_branch_in_doubt(session: Session, run: Run) -> None:
    manager, xid = await session.resource_manager("east"), Xid(7, b"metrics", b"branch")
    await manager.select()
    branch = await manager.start(xid)
    await branch.publish("east.in", [b"in doubt"])
    await manager.end(xid)
    run.mark("prepared")
    await manager.prepare(xid)
    await run.seen.until(
        "a branch in doubt",
        lambda: (
            max(run.between("lockstep_tx_in_doubt_oldest_seconds", "prepared", set="east"), default=0)
            > DOUBT_SECONDS
        ),
    )
    await manager.commit(xid)
    run.mark("committed")


async def _kill_the_primary(deployment: Deployment, session: Session, run: Run) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.push(lambda *error: True)  # It is rolled back by the failover.
        tx = await cleanup.enter_async_context(session.transaction())
        await tx.publish("east.in", [b"never seen"])
        primary = await deployment.primary_of("east")
        run.mark("primary killed")
        await deployment[primary].broker.kill()
        await deployment.primary_of("east")
        run.mark("served again")
    await deployment.cluster.start_broker(primary)
    await deployment.until_in_sync()
    run.mark("all in sync")
    await run.seen.until(
        "three in sync", lambda: run.between("lockstep_in_sync_size", "all in sync", set="east")[-1:] == [3.0]
    )


async def test_every_registered_name_is_seen_and_no_other(run: Run) -> None:
    wanted: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in NAMES.values():
        suffixes = {"_bucket": ("le",), "_sum": (), "_count": ()} if name.kind is Kind.HISTOGRAM else {"": ()}
        for service in name.services:
            wanted |= {(service, name.name + end): (*more, *name.labels) for end, more in suffixes.items()}
    seen = {(one.process.split()[0], one.name): tuple(one.labels) for one in run.seen.seen}
    assert {key: sorted(labels) for key, labels in seen.items()} == {
        key: sorted(labels) for key, labels in wanted.items()
    }


async def test_a_lost_backup_and_its_return_are_seen_in_the_in_sync_set(run: Run) -> None:
    assert min(run.between("lockstep_in_sync_size", "backup killed", "prepared", set="east")) == 2
    assert run.between("lockstep_in_sync_size", "all in sync", set="east")[-1] == 3
    lagging = {one.labels["backup"] for one in run.seen.of("lockstep_replication_lag_entries", set="east")}
    assert len(lagging) >= 2


async def test_a_set_that_completes_nothing_is_seen_though_the_map_keeps_its_minimum(run: Run) -> None:
    stalled = "backups stalled", "backups resumed"
    assert set(run.between("lockstep_min_in_sync", *stalled, set="east")) == {MIN_IN_SYNC}
    assert min(run.between("lockstep_in_sync_size", *stalled, set="east")) >= MIN_IN_SYNC
    assert min(run.between("lockstep_in_sync_reachable", *stalled, set="east")) == 1
    waited = max(run.between("lockstep_commit_waiting_seconds", *stalled, set="east"))
    assert WAITING_SECONDS < waited < run.marks["backups resumed"] - run.marks["backups stalled"] + 1.0
    assert run.between("lockstep_commit_waiting_seconds", "all in sync", set="east")[-1] < WAITING_SECONDS
    assert {one.value for one in run.seen.of("lockstep_set_brokers", set="east")} == {3.0}
    assert {one.value for one in run.seen.of("lockstep_lost_sets")} == {0.0}
    # Who was killed before it answered the first roll call is silent until it is back.
    assert set(run.between("lockstep_silent_witnesses", "all in sync")) == {0.0}


async def test_a_branch_in_doubt_is_seen_with_its_age_until_it_ends(run: Run) -> None:
    ages = run.between("lockstep_tx_in_doubt_oldest_seconds", "prepared", "committed", set="east")
    assert DOUBT_SECONDS < max(ages) < run.marks["committed"] - run.marks["prepared"] + 1.0
    assert run.between("lockstep_tx_in_doubt_oldest_seconds", "all in sync", set="east")[-1] == 0
    assert 1.0 in run.between("lockstep_tx_prepared", "prepared", "committed", set="east")


async def test_a_failover_is_seen_with_how_long_it_took(run: Run) -> None:
    epochs = [one.value for one in run.seen.of("lockstep_epoch", set="east") if one.value]
    failovers = run.seen.grown("lockstep_failover_seconds_count", set="east")
    # A busy machine may add some of its own.
    assert failovers == max(epochs) - min(epochs) >= 1
    primaries = {one.process for one in run.seen.of("lockstep_is_primary", set="east") if one.value}
    assert len(primaries) >= 2
    took = run.seen.grown("lockstep_failover_seconds_sum", set="east") / failovers
    assert 0 < took < run.marks["all in sync"] - run.marks["primary killed"] + 1.0


async def test_ends_of_transactions_and_clients_that_came_back_are_counted(run: Run) -> None:
    assert run.seen.grown("lockstep_tx_total", set="east", outcome="committed") > 10
    assert run.seen.grown("lockstep_tx_total", set="east", outcome="failover") >= 1
    assert run.seen.grown("lockstep_session_resumes_total", set="east") >= 1
    assert run.seen.grown("lockstep_commit_seconds_count", set="east") > 10
    assert run.seen.grown("lockstep_journal_fsync_seconds_count", set="east") > 30


async def test_it_can_be_plotted(run: Run) -> None:
    charts = {
        name: list(run.seen.of(name, set="east"))
        for name in (
            *("lockstep_is_primary", "lockstep_epoch", "lockstep_in_sync_size"),
            *("lockstep_failover_seconds_sum", "lockstep_tx_in_doubt_oldest_seconds"),
            "lockstep_messages_enqueued_total",
        )
    }
    assert all(charts.values())
    plot(run.seen, charts, run.marks, ARTEFACT)
    assert ARTEFACT.read_bytes().startswith(b"\x89PNG")
