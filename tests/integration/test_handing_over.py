"""A broker that is stopped, and not killed: what it leads is led by another before it is gone (DESIGN 2)."""

import asyncio
from pathlib import Path

from lockstep.runtime.health import READY, STARTED
from lockstep.runtime.health_check import ask
from tests.integration.cluster import deployed
from tests.integration.operators import run


async def test_a_broker_that_stops_hands_over_what_it_leads(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={"east": ["B1", "B3", "B2"]}) as deployment:
        assert await deployment.primary_of("east") == "B1"
        await deployment.until_in_sync()
        stopping = deployment["B1"].broker
        await stopping.stop(grace_seconds=30)
        said = stopping.last_words(50)
        assert "handed over to B3" in said and "event=stopped" in said, said
        (east,) = (await deployment.status()).view.sets
        assert east.primary in ("B2", "B3"), "whichever of the two was faster"


async def test_a_broker_steps_down_before_it_is_stopped_while_enough_others_stay(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={"east": ["B1", "B2", "B3"]}) as deployment:
        await deployment.until_in_sync()
        first, third = deployment["B1"].address, deployment["B3"].address
        for name in ("", STARTED, READY):
            assert await asyncio.to_thread(ask, first, name) == "SERVING", name

        assert await run("step-down", first) == (0, f"{first} may stop.\n", "")
        assert await deployment.primary_of("east") in ("B2", "B3")
        async with deployment.client() as client:
            # It is still there; whoever asks now must not count on it.
            assert await client.administration.step_down(third, 0) == ["B1 is about to stop"]

            # It has not stopped, and another is lost: without B1 the set would be below its minimum, and without B3, too.
            await deployment["B2"].broker.stop()
            too_few = "set east: 1 others are in sync, and 2 have to be"
            assert await run("step-down", first, "--seconds", "0") == (1, f"{too_few}\n", "")
            assert await client.administration.step_down(third, 0) == [too_few]
