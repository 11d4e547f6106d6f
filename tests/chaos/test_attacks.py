"""Floods of names and calls at once that once took a lease, or a set: nobody else is to notice more than that it takes longer."""

from pathlib import Path

import pytest

from tests.chaos.attacked import attack, prepare
from tests.chaos.attackers import NAMES_AND_CALLS
from tests.integration.cluster import Deployment, deployed

SET = "orders"
SECONDS = 20.0


@pytest.mark.slow
async def test_all_attacks_at_once_take_no_lease(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={SET: ["B1", "B2", "B3"]}, coordinators=1, proxies=1) as deployment:
        await prepare(deployment, SET)
        peace = await attack(deployment, SET, (), 5)
        found = await attack(deployment, SET, [one.__name__ for one in NAMES_AND_CALLS], SECONDS)
        print(f"in peace {peace}\nunder attack {found}")
        assert (found.leases_lost, found.promotions) == (0, 0)
        assert found.failures == 0 and found.answers > 0
        await check_that_it_was_attacked(deployment)


async def check_that_it_was_attacked(deployment: Deployment) -> None:
    """By what those leave behind that come as clients of AMQP."""
    async with deployment.client() as client, client.session() as session:
        queues = {queue.name: queue.length for queue in (await session.describe(SET)).queues}
    assert len([name for name in queues if name.startswith("flood-")]) >= 100, "new names"
    assert len([name for name in queues if "subscription-" in name]) >= 100, "durable subscriptions"
    assert queues["bomb"] > 0, "messages for the costly consumer"
    assert sum(length for name, length in queues.items() if name.startswith("bomb-")) == 0, "none matches"
