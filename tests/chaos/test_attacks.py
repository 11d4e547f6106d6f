"""What once took a lease, or a set, all at once: nobody else is to notice more than that it takes longer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.attacked import attack, prepare
from tests.chaos.attackers import CONTENTS_AND_LINKS, NAMES_AND_CALLS, Target
from tests.integration.cluster import Deployment, deployed

SET = "orders"
SECONDS = 20.0


@pytest.mark.slow
async def test_all_attacks_at_once_take_no_lease(tmp_path: Path) -> None:
    async with attacked(tmp_path, NAMES_AND_CALLS) as queues:
        assert len([name for name in queues if name.startswith("flood-")]) >= 100, "new names"
        assert len([name for name in queues if "subscription-" in name]) >= 100, "durable subscriptions"
        assert queues["bomb"] > 0, "messages for the costly consumer"
        assert sum(length for name, length in queues.items() if name.startswith("bomb-")) == 0, "none matches"


@pytest.mark.slow
async def test_floods_of_contents_and_links_at_once_take_no_lease(tmp_path: Path) -> None:
    async with attacked(tmp_path, CONTENTS_AND_LINKS) as queues:
        assert "entries" in queues, "messages of many entries"
        assert queues["big"] > 0, "messages for big deliveries"


@asynccontextmanager
async def attacked(
    directory: Path, attacks: Sequence[Callable[[Target], Awaitable[None]]]
) -> AsyncIterator[dict[str, int]]:
    """A cluster that has lived through these, with nobody else disturbed; its queues, as what those leave behind that come as
    clients of AMQP, by their lengths."""
    async with deployed(directory, sets={SET: ["B1", "B2", "B3"]}, coordinators=1, proxies=1) as deployment:
        await prepare(deployment, SET)
        peace = await attack(deployment, SET, (), 5)
        found = await attack(deployment, SET, [one.__name__ for one in attacks], SECONDS)
        print(f"in peace {peace}\nunder attack {found}")
        assert (found.leases_lost, found.promotions) == (0, 0)
        assert found.failures == 0 and found.answers > 0
        yield await lengths_of_queues(deployment)


async def lengths_of_queues(deployment: Deployment) -> dict[str, int]:
    async with deployment.client() as client, client.session() as session:
        return {queue.name: queue.length for queue in (await session.describe(SET)).queues}
