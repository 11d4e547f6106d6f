"""Queues longer than memory, with real processes: brokers stay small, and everything is delivered, also after a failover."""

import time
from pathlib import Path

import pytest

from lockstep.client.session import Session
from lockstep.core.commands import QueueOptions
from tests.integration.cluster import deployed

pytestmark = pytest.mark.asyncio(loop_scope="module")

SET = "long"
LIMIT_MIB = 16
MESSAGES = 24_000
BODY_BYTES = 8192
"""188 MiB in all: with them in memory a broker would have 250 MiB and more."""
GROWTH_MIB_MAX = 150
"""Of a broker's resident memory: the bodies that stay, frames kept for backups (64 MiB, which count up to twice while they are
applied), 24,000 messages without their bodies, and what malloc keeps.
"""
BATCH = 100


async def test_a_queue_longer_than_memory_is_delivered_whole_also_after_a_failover(tmp_path: Path) -> None:
    arguments = ("--resident-body-bytes", str(LIMIT_MIB << 20))
    members = ["B1", "B2"]
    async with (
        deployed(tmp_path, sets={SET: members}, brokers=2, broker_arguments=arguments) as deployment,
        deployment.client() as client,
        client.session() as session,
    ):
        await session.declare_queue("deep", QueueOptions(), set_name=SET)
        before = {name: _resident_mib(deployment[name].broker.pid) for name in members}
        for first in range(0, MESSAGES, BATCH):
            await session.publish("deep", [_body(number) for number in range(first, first + BATCH)])
        for name in members:
            grown = _peak_mib(deployment[name].broker.pid) - before[name]
            assert grown < GROWTH_MIB_MAX, f"{name} grew by {grown:.0f} MiB"

        await _consume(session, 0, MESSAGES // 2)
        primary = await deployment.primary_of(SET)
        assert primary == "B1"
        await deployment[primary].broker.kill()
        await _consume(session, MESSAGES // 2, MESSAGES)
        assert [message async for message in session.browse("deep")] == []
        grown = _peak_mib(deployment["B2"].broker.pid) - before["B2"]
        assert grown < GROWTH_MIB_MAX, f"B2 grew by {grown:.0f} MiB"


async def _consume(session: Session, first: int, last: int) -> None:
    """Takes and accepts messages `first` to `last` (exclusive), each intact and in its place."""
    deadline = time.monotonic() + 240
    consumer = await session.consume("deep", credit=200)
    accepted = None
    for number in range(first, last):
        message = await consumer.next(max(deadline - time.monotonic(), 1))
        assert message is not None, f"message {number} did not come"
        assert message.body == _body(number), f"message {number} is {message.body[:20]!r}"
        accepted = message.accept()
    if accepted is not None:
        await accepted
    await consumer.close()


def _body(number: int) -> bytes:
    return b"%d" % number + b"." * (BODY_BYTES - len(b"%d" % number))


def _resident_mib(pid: int) -> float:
    return _status_mib(pid, "VmRSS")


def _peak_mib(pid: int) -> float:
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
