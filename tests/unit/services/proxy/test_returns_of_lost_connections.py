"""What a lost connection leaves behind is back before a later attach to the same queue is answered, however many links it had."""

import asyncio
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from services.proxy import steps
from tests.amqp.listener_rig import FakeTransport
from tests.amqp.raw_client import attach_receiver, attach_sender, credit
from tests.unit.services.proxy.test_steps import BEGUN, Batches, Client, Set

MANY_LINKS = b"".join(attach_sender(f"s{number}", "q", number) for number in range(300))


async def test_a_client_that_comes_back_while_its_lost_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    happened: list[str] = []
    settle, consume = Batches.settle, Set.consume

    def noted_settle(self: Batches, *arguments: Any) -> Confirmation:
        happened.append("given back")
        return settle(self, *arguments)

    def noted_consume(self: Set, *arguments: Any, **options: Any) -> int:
        happened.append("consumed")
        return consume(self, *arguments, **options)

    monkeypatch.setattr(Batches, "settle", noted_settle)
    monkeypatch.setattr(Set, "consume", noted_consume)
    client = Client()
    await client.say(MANY_LINKS + attach_receiver("r", "queue", 9_000) + credit(9_000, 10))
    await client.until_done()
    client.transport.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    again = client.rig.worker.socket(None)
    transport = FakeTransport()
    transport.protocol = again
    again.connection_made(transport)
    again.data_received(BEGUN + attach_receiver("r", "queue", 0))
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    transport.close()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    assert happened == ["consumed", "given back", "consumed"]
