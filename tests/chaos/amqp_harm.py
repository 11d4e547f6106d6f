"""Harm to a cluster with proxies and coordinators: each kind kills or stalls one process, and brings it back.

Law: of the processes that a set's data is on one at a time is harmed, and only while all of them are in sync: what two at once
do is another test.
"""

import asyncio
import random
from collections import Counter

from lockstep.runtime.supervisor import ChildProcess
from tests.integration.cluster import SETS, Deployment

BROKER_STALL_SECONDS = 4.5
"""Beyond the lease of 3 s."""
PROXY_STALL_SECONDS = 6.5
"""Beyond the time-out of the proxy's session, 5 s, after which what it held is free."""
Step = tuple[str, ...]
"""Kinds of harm that are done together: the second begins while the first is felt."""
ONCE: tuple[Step, ...] = (
    ("stall primary", "kill proxy"),
    ("kill primary", "stall proxy"),
    ("kill store", "kill coordinator"),
    ("kill backup",),
)
"""Each kind once. A proxy dies with what a primary that hangs has not answered."""
_BROKER_KINDS = ("kill primary", "kill backup", "kill store", "stall primary", "stall backup", "stall store")
_OTHER_KINDS = ("kill proxy", "stall proxy", "kill coordinator", "")


class AmqpHarm:
    """Lives for one test."""

    def __init__(self, deployment: Deployment, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._deployment = deployment
        self._cluster = deployment.cluster
        self._chance = chance

    def any_step(self) -> Step:
        """One kind of harm to a broker or store of a set, and perhaps one to a process beside them."""
        return tuple(kind for kind in map(self._chance.choice, (_BROKER_KINDS, _OTHER_KINDS)) if kind)

    async def do(self, step: Step, set_name: str) -> None:
        """Returns when all that it kills and stalls runs again."""
        async with asyncio.TaskGroup() as group:
            for kind in step:
                group.create_task(self._do(kind, set_name))
                await self._pause()

    async def _do(self, kind: str, set_name: str) -> None:
        self.done[kind] += 1
        match kind:
            case "kill primary":
                await self._kill_broker(await self._deployment.primary_of(set_name))
            case "kill backup":
                await self._kill_broker(await self._backup_of(set_name))
            case "kill store":
                name = self._chance.choice(SETS[set_name])
                await self._cluster.brokers[name].store.kill()
                await self._pause()
                await self._cluster.start_store(name)
            case "stall primary":
                primary = await self._deployment.primary_of(set_name)
                await self._stall(self._cluster.brokers[primary].broker, BROKER_STALL_SECONDS)
            case "stall backup":
                backup = await self._backup_of(set_name)
                await self._stall(self._cluster.brokers[backup].broker, BROKER_STALL_SECONDS)
            case "stall store":
                name = self._chance.choice(SETS[set_name])
                await self._stall(self._cluster.brokers[name].store, BROKER_STALL_SECONDS)
            case "kill proxy":
                name = self._chance.choice(sorted(self._cluster.proxies))
                await self._cluster.proxies[name].kill()
                await self._pause()
                await self._cluster.start_proxy(name)
            case "stall proxy":
                name = self._chance.choice(sorted(self._cluster.proxies))
                await self._stall(self._cluster.proxies[name], PROXY_STALL_SECONDS)
            case "kill coordinator":
                name = self._chance.choice(sorted(self._cluster.coordinators))
                await self._cluster.coordinators[name].kill()
                await self._pause()
                await self._cluster.start_coordinator(name)
            case _:
                raise ValueError(kind)

    async def _backup_of(self, set_name: str) -> str:
        primary = await self._deployment.primary_of(set_name)
        return self._chance.choice([name for name in SETS[set_name] if name != primary])

    async def _kill_broker(self, name: str) -> None:
        await self._cluster.brokers[name].broker.kill()
        await self._pause()
        await self._cluster.start_broker(name)

    async def _stall(self, process: ChildProcess, seconds: float) -> None:
        process.stall()
        try:
            await asyncio.sleep(seconds)
        finally:
            process.resume()

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
