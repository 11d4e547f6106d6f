"""Brokers whose view of the cluster lags: what they have not heard of is asked of the others."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import lockstep
from lockstep.client import OutcomeState, Rejected
from lockstep.client.directory import Directory, Kind
from lockstep.client.events import EventsClient, Start
from lockstep.core.errors import ErrorCode
from lockstep.runtime.channels import Channels
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving, Transaction, enqueue

LONG_SECONDS = 3600.0
"""A test that waits so long fails by its own time limit."""


@pytest_asyncio.fixture
async def lagging(broker: FakeBroker) -> AsyncIterator[FakeBroker]:
    """It has heard of no set yet, and knows the other broker."""
    async with FakeBroker() as running:
        running.members = [running.address, broker.address]
        yield running


async def test_a_set_and_outcomes_are_asked_of_brokers_that_know_them(
    broker: FakeBroker, lagging: FakeBroker
) -> None:
    broker.outcome = int(OutcomeState.ROLLED_BACK)
    addresses = [lagging.address, broker.address]
    async with await lockstep.connect(addresses) as client, client.session() as session:
        await session.resource_manager("one")
        for index in range(1, 9):  # Whom it asks first is chance.
            outcome = await client.get_outcome(f"two/{index}.1")
            assert outcome.state is OutcomeState.ROLLED_BACK


async def test_who_was_told_of_a_lagging_broker_alone_finds_others(lagging: FakeBroker) -> None:
    channels = Channels()
    try:
        directory = Directory(channels, [lagging.address])
        assert (await directory.locate(Kind.KIND_SET, "one")).set_name == "one"
    finally:
        await channels.close()


async def test_a_set_that_no_broker_knows_is_refused_without_patience(
    broker: FakeBroker, lagging: FakeBroker
) -> None:
    async with await lockstep.connect(lagging.address) as client, client.session() as session:
        with pytest.raises(Rejected, match="no resource set") as raised:
            await session.resource_manager("three")
        assert raised.value.code is ErrorCode.UNKNOWN_SET
        with pytest.raises(Rejected) as raised:
            await client.get_outcome("three/4.1", patience_seconds=LONG_SECONDS)
        assert raised.value.code is ErrorCode.UNKNOWN_SET


def test_a_reader_of_events_goes_on_with_a_broker_that_has_heard_of_its_sets() -> None:
    logs = {"east": [Transaction(2, (enqueue("q", b"1"),))]}
    brokers = FakeEvents(logs, has_not_heard=True), FakeEvents(logs)
    with Serving(*brokers) as serving, EventsClient(serving.addresses[0]) as events:
        opened = events.open_subscription("g", Start.START_EARLIEST)
        plan = events.plan("g", opened.offsets)
        assert [planned.start.resource_set for planned in plan.ranges] == ["east"]
        events.acknowledge("g", opened.offsets)


def test_a_reader_of_a_set_that_no_broker_knows_hears_so_without_patience() -> None:
    brokers = [FakeEvents({}, has_not_heard=True) for _ in range(2)]
    with (
        Serving(*brokers) as serving,
        EventsClient(serving.addresses[0], patience_seconds=LONG_SECONDS) as events,
        pytest.raises(Rejected) as raised,
    ):
        events.open_subscription("g", Start.START_EARLIEST)
    assert raised.value.code is ErrorCode.UNKNOWN_SET
