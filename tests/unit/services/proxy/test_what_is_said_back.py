"""An attach says back what holds of its nodes, and nothing else that was asked for (AMQP 1.0, 3.5)."""

from typing import Any

import pytest

from tests.amqp import codec
from tests.amqp.codec import Described, composite, named
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender
from tests.amqp.stub_proxy import serving

DELETE_ON_NO_LINKS = codec.mapping(
    codec.symbol("lifetime-policy"), codec.described(codec.ulong(0x2C), codec.sequence())
)


@pytest.mark.parametrize("wanted", [["queue", "magic"], ["magic", "queue", "instant"]])
async def test_capabilities_that_a_node_has_not_are_not_said_back(wanted: list[str]) -> None:
    capabilities = codec.symbols(*wanted)
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        target = composite("target", address="orders", capabilities=capabilities)
        client.send(attach_sender("sender", "orders", 0, target=target))
        assert named((await client.expect("attach"))["target"])["capabilities"] == ["queue"]
        source = composite("source", address="orders", capabilities=capabilities)
        client.send(attach_receiver("receiver", "orders", 1, source=source))
        assert named((await client.expect("attach"))["source"])["capabilities"] == ["queue"]


async def test_capabilities_are_none_where_none_is_known() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        target = composite("target", address="orders", capabilities=codec.symbols("magic"))
        client.send(attach_sender("sender", "orders", 0, target=target))
        assert named((await client.expect("attach"))["target"])["capabilities"] is None


async def test_a_dynamic_node_says_that_it_ends_with_its_link() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        dynamic: dict[str, Any] = {"dynamic": True, "dynamic_node_properties": DELETE_ON_NO_LINKS}
        client.send(attach_sender("sender", None, 0, target=composite("target", **dynamic)))
        client.send(attach_receiver("receiver", "", 1, source=composite("source", **dynamic)))
        for _ in range(2):
            attach = await client.expect("attach")
            node = named(attach["target"] if attach["name"] == "sender" else attach["source"])
            assert node["address"].startswith("temporary-queue:")
            assert node["dynamic_node_properties"] == {"lifetime-policy": Described(0x2B, [])}


async def test_a_link_to_a_queue_says_that_nothing_is_kept_of_it_whatever_was_asked_for() -> None:
    asked: dict[str, Any] = {"durable": codec.uint(2), "expiry_policy": codec.symbol("never")}
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        target = composite("target", address="orders", **asked)
        client.send(attach_sender("sender", "orders", 0, target=target))
        source = composite("source", address="orders", **asked)
        client.send(attach_receiver("receiver", "orders", 1, source=source))
        for _ in range(2):
            attach = await client.expect("attach")
            node = named(attach["target"] if attach["name"] == "sender" else attach["source"])
            assert (node["durable"] or 0, node["expiry_policy"]) == (0, "link-detach")
