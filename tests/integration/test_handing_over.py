"""A broker that is stopped, and not killed: what it leads is led by another before it is gone (DESIGN 2)."""

from pathlib import Path

from tests.integration.cluster import deployed


async def test_a_broker_that_stops_hands_over_what_it_leads(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={"east": ["B1", "B2", "B3"]}) as deployment:
        assert await deployment.primary_of("east") == "B1"
        stopping = deployment["B1"].broker
        await stopping.stop(grace_seconds=30)
        said = stopping.last_words(50)
        assert "handed over to B2" in said and "event=stopped" in said, said
        (east,) = (await deployment.status()).view.sets
        assert east.primary in ("B2", "B3"), "whichever of the two was faster"
