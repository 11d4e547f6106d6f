"""Failover stress: numbered senders and receivers in transactions, each new primary killed in turn, over and over."""

import itertools
from pathlib import Path

import pytest

from tests.chaos.workload import Workload
from tests.integration.cluster import SETS, deployed

pytestmark = pytest.mark.slow

CYCLES = 10
SET = "east"


async def test_each_new_primary_is_killed_in_turn(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment, deployment.client() as client:
        workload = Workload(client, SET, senders=4, movers=3)
        primaries = []
        async with workload.running():
            for _ in range(CYCLES):
                await workload.committed_since(20)
                primary = await deployment.primary_of(SET)
                primaries.append(primary)
                await workload.note_kill(2)
                await deployment[primary].broker.kill()
                await workload.committed_since(5)
                await deployment.cluster.start_broker(primary)
                await deployment.until_in_sync(3)
        await workload.check()
        for set_name in SETS:
            assert len(set((await deployment.state_hashes(set_name)).values())) == 1
    print(f"primaries killed: {' '.join(primaries)}; {workload.report}")
    assert all(one != other for one, other in itertools.pairwise(primaries))
    assert workload.report.killed_in_flight >= 2 * CYCLES
