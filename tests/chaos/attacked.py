"""A cluster under attack, and a bystander who has nothing to do with it: how long it waits, and what becomes of leases."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.amqp import codec
from tests.amqp.raw_client import RawClient
from tests.integration.cluster import Deployment

QUEUE = "bystander"
_DURABLE = codec.message(b"well", codec.described(codec.ulong(0x70), codec.sequence(codec.boolean(True))))
PAUSE_SECONDS = 0.05
"""Between two messages of the bystander."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the bystander met."""

    answers: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    failures: int
    """Connections that it lost, or that said nothing for too long."""
    leases_lost: int
    promotions: int


async def prepare(deployment: Deployment, set_name: str) -> None:
    """What the bystander and the attackers need in a set."""
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(QUEUE, set_name=set_name)
        for exchange in ("news", "bombs"):
            await session.declare_exchange(exchange, "topic", set_name=set_name)


async def attack(deployment: Deployment, set_name: str, attacks: Sequence[str], seconds: float) -> Figures:
    """So many strangers at the ports of the set's primary, a proxy and a coordinator for so long; without any: how it is in
    peace."""
    broker = deployment[await deployment.primary_of(set_name)].address
    proxy = deployment.cluster.proxy_addresses[0]
    async with deployment.client() as client:
        coordinator = (await client.administration.coordinators())[0]
    target = (broker, proxy, coordinator, set_name, str(seconds))
    logs = {
        local.broker.log: local.broker.log.stat().st_size for local in deployment.cluster.brokers.values()
    }
    bystander = _Bystander()
    watching = asyncio.create_task(bystander.run(proxy, time.monotonic() + seconds))
    processes = [
        await asyncio.create_subprocess_exec(*(sys.executable, "-m", "tests.chaos.attackers", name, *target))
        for name in attacks
    ]
    try:
        await watching
        ended = {name: process.returncode for name, process in zip(attacks, processes, strict=True)}
        assert not any(ended.values()), f"attackers that failed: {ended}"
    finally:
        watching.cancel()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))
    said = "".join(log.read_text(errors="replace")[begin:] for log, begin in logs.items())
    waits = sorted(bystander.waits_ms)
    return Figures(
        len(waits),
        _quantile(waits, 0.5),
        _quantile(waits, 0.99),
        waits[-1] if waits else 0.0,
        bystander.failures,
        said.count("event=lease_lost"),
        said.count("event=promoted"),
    )


class _Bystander:
    """Sends one durable message after the other to a queue of its own, and hears that it is there."""

    def __init__(self) -> None:
        self.waits_ms: list[float] = []
        self.failures = 0

    async def run(self, proxy: str, until: float) -> None:
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                await self._send(proxy, until)
                return
            self.failures += 1
            await asyncio.sleep(0.1)

    async def _send(self, proxy: str, until: float) -> None:
        async with await RawClient.begun(proxy) as client:
            await client.attach_sender(QUEUE, QUEUE)
            while (begun := time.monotonic()) < until:
                state = await client.outcome_of(client.transfer(_DURABLE, settled=False))
                assert state.name == "accepted", state
                self.waits_ms.append(1000 * (time.monotonic() - begun))
                await asyncio.sleep(PAUSE_SECONDS)


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)] if ascending else 0.0
