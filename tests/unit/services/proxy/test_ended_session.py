"""A proxy that was stalled for longer than its session lasts: its clients are told to connect again."""

from collections.abc import AsyncIterator

import pytest

from services.proxy.core.conditions import CONNECTION_FORCED, ROLLED_BACK
from tests.amqp import codec
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender
from tests.amqp.stub_brokers import MISSING, EndedSession
from tests.amqp.stub_proxy import serving

MESSAGE = codec.message(b"body")


@pytest.fixture
async def client() -> AsyncIterator[RawClient]:
    """Of such a proxy."""
    async with serving(session=EndedSession()) as proxy, await RawClient.begun(proxy.address) as client:
        yield client


async def test_a_message_that_was_not_taken_ends_the_connection_without_an_outcome(client: RawClient) -> None:
    await client.attach_sender("sender", "queue")
    client.transfer(MESSAGE)
    assert await client.expect_end() == CONNECTION_FORCED
    assert not [frame for frame in client.passed if frame.name == "disposition"]


async def test_a_node_of_the_anonymous_relay_that_could_not_be_made_ends_the_connection(
    client: RawClient,
) -> None:
    await client.attach_sender("relay", None)
    client.transfer(codec.message(b"body", codec.composite("properties", to=f"{MISSING} as yet")))
    assert await client.expect_end() == CONNECTION_FORCED


@pytest.mark.parametrize("is_sender", [True, False])
async def test_an_attach_whose_node_could_not_be_made_ends_the_connection(
    client: RawClient, is_sender: bool
) -> None:
    capabilities = codec.symbols("temporary-queue")
    dynamic = codec.composite(
        "target" if is_sender else "source", address=None, dynamic=True, capabilities=capabilities
    )
    if is_sender:
        client.send(attach_sender("dynamic", None, target=dynamic))
    else:
        client.send(attach_receiver("dynamic", "", source=dynamic))
    assert await client.expect_end() == CONNECTION_FORCED


async def test_a_commit_is_refused_as_a_rollback_and_the_connection_stays(client: RawClient) -> None:
    await client.attach_coordinator()
    outcome = await client.discharge(await client.declare())
    assert outcome.name == "rejected"
    assert codec.named(outcome["error"])["condition"] == ROLLED_BACK
    assert await client.declare()


async def test_a_rollback_is_a_rollback(client: RawClient) -> None:
    await client.attach_coordinator()
    outcome = await client.discharge(await client.declare(), fail=True)
    assert outcome.name == "accepted"
