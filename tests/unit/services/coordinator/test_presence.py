"""A coordinator's key in etcd: it comes back, however it was lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import DecisionKeys
from lockstep.core.ids import Incarnation
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import EtcdClient
from services.coordinator.presence import RENEWALS_PER_LEASE, Presence
from tests.unit.services.etcd_in_memory import EtcdInMemory

LEASE_SECONDS = 1
"""Renewed every 0.2 s."""
ME = Incarnation("me")
KEY = DecisionKeys("c").coordinator(ME)


class Running:
    """A presence and its etcd."""

    def __init__(self) -> None:
        self.etcd = EtcdInMemory()
        self.presence = Presence(cast(EtcdClient, self.etcd), "c", ME, "here:1", LEASE_SECONDS)

    @property
    def is_ours(self) -> bool:
        entry = self.etcd.entries.get(KEY)
        return entry is not None and entry.mod_revision == self.presence.revision

    async def until(self, holds: Callable[[], bool]) -> None:
        """Within a few renewals."""
        async with asyncio.timeout(5 * LEASE_SECONDS):
            while not holds():
                await asyncio.sleep(LEASE_SECONDS / RENEWALS_PER_LEASE / 10)


@pytest.fixture
async def running() -> AsyncGenerator[Running]:
    running = Running()
    running.etcd.delays_next_of = KEY
    task = asyncio.ensure_future(running.presence.run())
    await running.presence.registered()
    yield running
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_registration_that_is_executed_late_does_not_take_the_presence_along(
    running: Running,
) -> None:
    """P7: it puts the key under a lease that nobody renews, and the renewals of the other lease go well for ever."""
    assert running.is_ours
    running.etcd.execute_delayed()
    running.etcd.end_lease(1)
    assert KEY not in running.etcd.entries
    await running.until(lambda: running.is_ours)
    assert running.etcd.entries[KEY].lease_id == len(running.etcd.granted) == 3


async def test_a_key_under_another_lease_than_the_renewed_one_is_taken_back_before_that_ends(
    running: Running,
) -> None:
    running.etcd.execute_delayed()
    await running.until(lambda: running.is_ours)
    running.etcd.end_lease(1)
    assert running.is_ours


async def test_a_key_that_stands_is_left_alone(running: Running) -> None:
    revision = running.presence.revision
    await asyncio.sleep(3 * LEASE_SECONDS / RENEWALS_PER_LEASE)
    assert running.presence.revision == revision and running.is_ours
    assert len(running.etcd.granted) == 2


async def test_an_etcd_that_was_set_back_is_noticed_by_who_renews(running: Running) -> None:
    running.etcd.put(Keys("c").generation, running.presence.generation_value)
    seen = running.etcd.revision
    await running.until(lambda: running.presence.watch.seen.revision == seen)
    running.etcd.revision -= 10
    await running.until(lambda: running.presence.watch.is_set_back)
    assert running.is_ours, "it goes on to be present"


@pytest.mark.parametrize("lease_seconds", [1, 60])
async def test_whoever_has_to_know_how_long_etcd_was_out_of_sight_hears_of_each_read(
    lease_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the lease is; with when it was asked, for its answer may be late."""
    monkeypatch.setattr("services.coordinator.presence.SEEN_SECONDS", 0.2)
    etcd, asked = EtcdInMemory(), list[int]()
    presence = Presence(cast(EtcdClient, etcd), "c", ME, "here:1", lease_seconds)
    presence.seen = asked.append
    begun_ms = boottime_ms()
    task = asyncio.ensure_future(presence.run())
    try:
        async with asyncio.timeout(5):
            while len(asked) < 4:
                await asyncio.sleep(0.02)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert asked == sorted(asked) and begun_ms <= asked[0] and asked[-1] <= boottime_ms()
