"""Which cluster the tests of a file have: the same one while it comes round, and then another."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.shared_clusters import SharedClusters


class Site:
    """Clusters that are known by their directories."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.broken: set[str] = set()

    @asynccontextmanager
    async def deploy(self, directory: Path) -> AsyncIterator[str]:
        self.running.append(directory.name)
        yield directory.name
        self.running.remove(directory.name)

    async def mend(self, name: str) -> None:
        assert name not in self.broken, f"{name} is not whole"


async def test_a_cluster_serves_test_after_test_until_one_breaks_it(tmp_path: Path) -> None:
    site = Site()
    async with AsyncExitStack() as stack:
        clusters = SharedClusters(tmp_path, stack, site.deploy, site.mend)
        for _ in range(2):
            assert await clusters.present() == "1"
            await clusters.come_round()
        site.broken.add(await clusters.present())
        await clusters.come_round()
        assert not site.running
        assert await clusters.present() == "2" and site.running == ["2"]
        await clusters.end()
        assert not site.running and await clusters.present() == "3"
        await clusters.come_round()
    assert not site.running


async def test_a_fault_of_the_tests_own_is_not_taken_for_a_broken_cluster(tmp_path: Path) -> None:
    async def mend(_: str) -> None:
        raise LookupError

    async with AsyncExitStack() as stack:
        clusters = SharedClusters(tmp_path, stack, Site().deploy, mend)
        await clusters.present()
        with pytest.raises(LookupError):
            await clusters.come_round()
