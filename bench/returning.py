"""A broker that is killed and comes back, with an empty disk or its old one: how long it takes until it is in sync, and where.

Law: times are those that the brokers wrote into their logs, counted from the moment at which the broker process was started; so
asking for them costs what is measured nothing.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.integration.cluster import Deployment
from tests.integration.log_tail import LogTail

JOIN_SECONDS_MAX = 60.0
_STEPS = {
    "replica_created": "process started",
    "loaded": "disk loaded",
    "whole_snapshot": "snapshot begun",
    "memory_whole": "memory whole",
}
"""What the joining broker logs, and what is said of it."""
STEPS = (*_STEPS.values(), "in sync")


@dataclass(frozen=True, slots=True)
class Returned:
    """One return to the in-sync set."""

    seconds: float
    steps: Mapping[str, float]
    """Seconds from the start at which each of `STEPS` was reached; of those that happened."""


async def remove(deployment: Deployment, name: str, members_left: int, *, is_disk_lost: bool) -> None:
    """Kills a broker, and its store where the disk is lost; returns when the set goes on without it."""
    local = deployment[name]
    await local.broker.kill()
    if is_disk_lost:
        await local.store.kill()
    await deployment.until_in_sync(members_left)
    if is_disk_lost:
        shutil.rmtree(deployment.cluster.directory / name / "store")
        await deployment.cluster.start_store(name)


async def come_back(deployment: Deployment, name: str, primary: str) -> Returned:
    """Starts the broker; returns when the primary's map names it again."""
    own, primary_log = LogTail(deployment[name].broker.log), LogTail(deployment[primary].broker.log)
    begin = time.time()
    await deployment.cluster.start_broker(name)
    deadline = begin + JOIN_SECONDS_MAX
    while not (joined := [at for at, event in primary_log.events() if _names(event, name)]):
        assert time.time() < deadline, f"{name} is not in sync within {JOIN_SECONDS_MAX:g} s"
        await asyncio.sleep(0.1)
    steps = {"in sync": joined[0] - begin}
    for at, event in own.events():
        for said, step in _STEPS.items():
            if event.startswith(said):
                steps[step] = at - begin
    return Returned(joined[0] - begin, steps)


def _names(event: str, broker: str) -> bool:
    return event.startswith("in_sync") and re.search(rf"\b{re.escape(broker)}\b", event) is not None
