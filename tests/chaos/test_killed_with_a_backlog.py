"""A set with a long backlog whose brokers are killed with their stores: one backup, then the primary, then all at once.

However many messages there are, what a broker does about them keeps no loop for long: no lease is lost, and nobody leads but whom
the kills bring. The loops of all processes are watched (`tests/long_steps.py`); `make bench-restarting` measures millions.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lockstep.core.errors import LockstepError
from tests.integration.backlog import fill
from tests.integration.cluster import Deployment, deployed
from tests.integration.log_tail import LogTail

pytestmark = pytest.mark.slow

SET, DEEP, PROBE = "deep", "deep", "probe"
MESSAGES = 60_000
"""In one queue; two thirds as many are in a thousand others."""
BODY = b"p" * 100
QUEUES = 1_000


class Events:
    """What the brokers have written into their logs since this was made."""

    def __init__(self, deployment: Deployment) -> None:
        self._tails = {name: LogTail(one.broker.log) for name, one in deployment.cluster.brokers.items()}

    def of(self, kind: str) -> list[str]:
        """The brokers that wrote such an event, once for each."""
        return [
            name for name, tail in self._tails.items() for _, event in tail.events() if event.startswith(kind)
        ]


@contextlib.asynccontextmanager
async def publishing(deployment: Deployment) -> AsyncIterator[None]:
    """A client is at work all the time, whatever it is told."""
    task = asyncio.create_task(_publish(deployment))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _publish(deployment: Deployment) -> None:
    while True:
        with contextlib.suppress(LockstepError):
            async with deployment.client() as client, client.session() as session:
                while True:
                    await session.publish(PROBE, b"x")
                    await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)


async def test_brokers_that_are_killed_come_back_to_a_long_backlog_and_no_lease_is_lost(
    tmp_path: Path,
) -> None:
    # A busy machine stops a process for longer than the usual lease.
    told = "--lease-seconds", "10"
    async with deployed(tmp_path, sets={SET: ["B1", "B2", "B3"]}, broker_arguments=told) as deployment:
        async with deployment.client() as client, client.session() as session:
            await session.declare_queue(PROBE, set_name=SET)
            await fill(session, SET, [DEEP], [BODY] * 500, MESSAGES)
            others = [f"other-{number}" for number in range(QUEUES)]
            await fill(session, SET, others, [BODY] * 40, 2 * MESSAGES // 3)
        async with publishing(deployment):
            for what, promotions in (("a backup", 0), ("the primary", 1), ("all", 1)):
                primary, events = await deployment.primary_of(SET), Events(deployment)
                backups = [name for name in ("B1", "B2", "B3") if name != primary]
                victims = {"a backup": backups[:1], "the primary": [primary], "all": [primary, *backups]}
                await deployment.kill_and_start(victims[what])
                await deployment.until_in_sync(3)
                promoted = events.of("promoted")
                assert len(promoted) == promotions, (
                    f"{what} was killed: {promoted} promoted\n{deployment.logs()}"
                )
                assert not events.of("lease_lost"), f"{what} was killed\n{deployment.logs()}"
        status = await deployment.status(with_state_hash=True)
        assert len(await deployment.state_hashes(SET)) == 3, status
        async with deployment.client() as client, client.session() as session:
            lengths = {one.name: one.length for one in (await session.describe(SET)).queues}
        assert lengths[DEEP] == MESSAGES and sum(lengths[name] for name in others) == 2 * MESSAGES // 3
