"""Brokers restarted one after the other under load, as operators do it: no client notices, nothing is lost or torn (T6, T8).

Behind it each set is led by its first broker again, and nobody notices that either (C4).

Every exception that the client raises counts, and every commit whose outcome it had to ask for. With LOCKSTEP_TESTS=full there
are twenty restarts, otherwise three.
"""

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lockstep.client.client import Client
from lockstep.core.errors import LockstepError
from tests.chaos.audited_workload import AuditedWorkload
from tests.chaos.committed_logs import check_clients_of
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.operators import run

pytestmark = pytest.mark.slow

SET = "east"
IS_FULL = os.environ.get("LOCKSTEP_TESTS", "") == "full"
RESTARTS = 20 if IS_FULL else 3
GIVE_BACK_SECONDS = 2
"""Much shorter than operators have it: sets are given back between two restarts, too."""
LINGER_SECONDS = 1.5
"""How long each of the slow ones has a transaction open, or a message in hand: longer than a hand-over takes."""


class Lingering:
    """Clients with transactions open and messages in hand while sets are handed over. Lives for one test; single-use."""

    def __init__(self, client: Client) -> None:
        self.errors: Counter[str] = Counter()
        self.published: list[bytes] = []
        self.moved: list[bytes] = []
        self._client = client
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """They work inside the block; behind it everything that was published is moved."""
        async with self._client.session() as session:
            for queue in ("slow", "slow-out"):
                await session.declare_queue(queue, set_name=SET)
        publishing = [asyncio.create_task(self._publish(number)) for number in range(2)]
        moving = asyncio.create_task(self._move())
        try:
            yield
            self._is_over = True
            async with asyncio.timeout(60):
                await asyncio.gather(*publishing, moving)
        finally:
            for task in (*publishing, moving):
                task.cancel()
            await asyncio.gather(*publishing, moving, return_exceptions=True)

    async def check(self) -> None:
        async with self._client.session() as session:
            left = [message.body async for message in session.browse("slow")]
            out = [message.body async for message in session.browse("slow-out")]
        assert sorted(left + out) == sorted(self.published), "lost, torn or there twice"
        assert sorted(out) == sorted(self.moved)

    async def _publish(self, publisher: int) -> None:
        """Both halves, or neither."""
        async with self._client.session() as session:
            for number in itertools.count():
                if self._is_over:
                    return
                halves = [b"%d/%d.%d" % (publisher, number, half) for half in (1, 2)]
                with self._counted():
                    async with session.transaction() as transaction:
                        await transaction.publish("slow", halves[0])
                        await asyncio.sleep(LINGER_SECONDS)
                        await transaction.publish("slow", halves[1])
                    self.published += halves

    async def _move(self) -> None:
        """Takes a message, has it in hand, and accepts it in a transaction that is open for a while."""
        async with self._client.session() as session:
            consumer = await session.consume("slow", credit=2)
            while not self._is_over:
                message = await consumer.next(0.2)
                if message is None:
                    continue
                await asyncio.sleep(LINGER_SECONDS / 2)
                with self._counted():
                    async with session.transaction() as transaction:
                        await transaction.publish("slow-out", message.body)
                        await transaction.accept(message)
                        await asyncio.sleep(LINGER_SECONDS / 2)
                    self.moved.append(message.body)
            await consumer.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except LockstepError as error:
            self.errors[f"{error.code.name}: {error.message}"] += 1


async def restart(deployment: Deployment, name: str) -> None:
    """As `docs/operations.md` has it: step down, stop, start, wait until it is in sync."""
    local = deployment[name]
    status, said, _ = await run("step-down", local.address)
    assert (status, said) == (0, f"{local.address} may stop.\n")
    await local.broker.stop(grace_seconds=60)
    assert local.broker.status == 0
    await deployment.cluster.start_broker(name)
    await deployment.until_in_sync(3)


async def led_by_their_first(deployment: Deployment) -> None:
    """Each set is again, and stays so, with all brokers in sync."""
    async with asyncio.timeout(60):
        while {name: await deployment.primary_of(name) for name in SETS} != {
            name: brokers[0] for name, brokers in SETS.items()
        }:
            await asyncio.sleep(0.2)
    await deployment.until_in_sync(3)
    led = {one.name: (one.primary, one.epoch) for one in (await deployment.status()).view.sets}
    await asyncio.sleep(2 * GIVE_BACK_SECONDS)
    assert {one.name: (one.primary, one.epoch) for one in (await deployment.status()).view.sets} == led


async def test_brokers_restarted_in_turn_are_not_noticed(tmp_path: Path) -> None:
    # A busy machine stops a process for longer than the usual lease, and that is a failover.
    told = ("--lease-seconds", "10", "--give-back-seconds", str(GIVE_BACK_SECONDS))
    async with deployed(tmp_path, broker_arguments=told) as deployment, deployment.client() as client:
        workload = AuditedWorkload(client, deployment.addresses, SET)
        lingering = Lingering(client)
        led = 0
        async with lingering.running(), workload.running():
            for name in itertools.islice(itertools.cycle(SETS[SET]), RESTARTS):
                await workload.committed_since(20)
                led += await deployment.primary_of(SET) == name
                began = time.monotonic()
                await restart(deployment, name)
                print(
                    f"{name} restarted in {time.monotonic() - began:.1f} s; {workload.report.committed} commits"
                )
            await workload.committed_since(20)
            await led_by_their_first(deployment)
            await workload.committed_since(20)
        await workload.check()
        await lingering.check()
        (epoch,) = [one.epoch for one in (await deployment.status()).view.sets if one.name == SET]
        hand_overs = epoch - 1
        model = await check_clients_of(SET, deployment.store_addresses(SET), workload)
        print(
            f"{RESTARTS} restarts, {hand_overs} hand-overs of {SET}; {workload.summary()}; {len(lingering.published)} published "
            f"slowly, {len(lingering.moved)} of them moved; checked in the log: {model.end} indexes"
        )
        assert led and hand_overs >= led, "a broker that led was restarted"
        report = workload.report
        noticed = report.errors + lingering.errors
        assert not noticed and not report.asked and not report.rolled_back and not report.in_doubt, noticed
