"""Names and addresses with control characters are refused, and none of them is cut at a NUL and taken for another."""

import pytest

from services.proxy.core.conditions import INVALID_FIELD
from tests.amqp import codec
from tests.amqp.codec import composite, named
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender
from tests.amqp.stub_brokers import StubBatches, StubSession, StubSet
from tests.amqp.stub_proxy import serving

ADDRESSES = ["orders\0-test", "\0", "a\nb", "prices/eu\0", "topic://prices/\x7f", "queue://\x9f"]


class Asked(StubSession):
    """Writes down which nodes were looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        self.names.append(exchange or routing_key)
        return await super().of_target(exchange, routing_key)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_link_to_such_an_address_is_refused(address: str) -> None:
    session = Asked()
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        client.send(attach_sender("sender", address, 0), attach_receiver("receiver", address, 1))
        for _ in range(2):
            assert (await client.expect("attach"))["name"] in ("sender", "receiver")
            assert (await client.expect("detach")).condition == INVALID_FIELD
        assert session.names == []
        await client.attach_sender("fine", "orders", 2)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_message_to_such_an_address_is_rejected(address: str) -> None:
    session = Asked()
    properties = composite("properties", to=codec.string(address))
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("relay", None)
        outcome = await client.outcome_of(client.transfer(codec.message(b"x", properties)))
        assert outcome.name == "rejected"
        assert named(outcome["error"])["condition"] == INVALID_FIELD
        assert session.names == []


async def test_the_other_terminus_has_no_such_address_either() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        client.send(attach_sender("sender", "orders", source=composite("source", address="a\0b")))
        assert (await client.expect("detach")).condition == INVALID_FIELD


@pytest.mark.parametrize("name", ["sub\0scription", "\n"])
async def test_a_link_of_such_a_name_ends_the_connection(name: str) -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        client.send(attach_receiver(name, "orders"))
        assert await client.expect_end() == INVALID_FIELD


@pytest.mark.parametrize("container", ["con\0tainer", "\r"])
async def test_a_container_of_such_a_name_is_not_let_in(container: str) -> None:
    async with serving() as proxy, await RawClient.connected(proxy.address) as client:
        client.send(codec.AMQP_HEADER, codec.performative("open", container_id=container))
        await client.expect_header()
        assert await client.expect_end() == INVALID_FIELD
