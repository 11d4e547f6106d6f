"""`recover()` after a promotion lists every prepared branch, also when there are very many."""

from pathlib import Path

from tests.integration.cluster import SETS, deployed
from tests.integration.many_branches import recover_many

BRANCHES = 1000
RECOVER_SECONDS_MAX = 10.0
"""Of one `recover()`, several pages of it, on a busy machine; `make bench-recover` shows what it takes."""


async def test_a_successor_lists_a_thousand_prepared_branches_and_holds_their_locks(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={"east": SETS["east"]}) as deployment:
        recovery = await recover_many(deployment, "east", BRANCHES)
    assert recovery.recover_seconds < RECOVER_SECONDS_MAX, recovery
