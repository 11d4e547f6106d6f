"""A fake broker with two sets, a fake coordinator, a client of both, and a session of that."""

from collections.abc import AsyncIterator

import pytest_asyncio

import lockstep
from lockstep.client import Client, Session
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker("one", "two") as running:
        running.directory |= {"a": "one", "b": "one", "c": "two", "x": "two"}
        yield running


@pytest_asyncio.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    async with FakeCoordinator() as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: FakeBroker, coordinator: FakeCoordinator) -> AsyncIterator[Client]:
    async with await lockstep.connect(broker.address, coordinators=coordinator.address) as connected:
        yield connected


@pytest_asyncio.fixture
async def session(client: Client) -> AsyncIterator[Session]:
    async with client.session() as opened:
        yield opened
