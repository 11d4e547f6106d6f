"""Which node an address names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.core.addresses import (
    TEMPORARY_TOPICS_EXCHANGE,
    Address,
    NodeKind,
    as_topic,
    container_claim,
    parse_address,
    subscription_queue,
)


@pytest.mark.parametrize(
    ("text", "capabilities", "address"),
    [
        ("orders", (), Address(NodeKind.ANY, "orders")),
        ("prices/eu", (), Address(NodeKind.ANY, "prices/eu")),
        ("orders", ("queue",), Address(NodeKind.QUEUE, "orders")),
        ("a/b", ("queue",), Address(NodeKind.QUEUE, "a/b")),
        ("prices", ("topic",), Address(NodeKind.TOPIC, "prices")),
        ("prices/eu/x", ("topic",), Address(NodeKind.TOPIC, "prices", "eu/x")),
        ("queue://a/b", (), Address(NodeKind.QUEUE, "a/b")),
        ("topic://prices/eu.*", (), Address(NodeKind.TOPIC, "prices", "eu.*")),
        ("queue://orders", ("topic",), Address(NodeKind.QUEUE, "orders")),
        ("temporary-queue:1", ("topic",), Address(NodeKind.QUEUE, "temporary-queue:1")),
        ("queue://temporary-queue:1", (), Address(NodeKind.QUEUE, "temporary-queue:1")),
        ("temporary-topic:1", (), Address(NodeKind.TOPIC, TEMPORARY_TOPICS_EXCHANGE, "temporary-topic:1")),
        (
            "topic://temporary-topic:1",
            (),
            Address(NodeKind.TOPIC, TEMPORARY_TOPICS_EXCHANGE, "temporary-topic:1"),
        ),
        ("subscription:c:s", (), Address(NodeKind.QUEUE, "subscription:c:s")),
        (container_claim("c"), (), Address(NodeKind.QUEUE, "container:c")),
    ],
)
def test_an_address_names_a_node(text: str, capabilities: tuple[str, ...], address: Address) -> None:
    assert parse_address(text, capabilities) == address


def test_what_is_no_queue_is_an_exchange_and_key() -> None:
    assert as_topic(parse_address("prices/eu.paris")) == Address(NodeKind.TOPIC, "prices", "eu.paris")


@given(st.text(), st.text(), st.text(), st.text())
def test_two_subscriptions_never_share_a_queue(container: str, name: str, other: str, its_name: str) -> None:
    same = (container, name) == (other, its_name)
    assert (subscription_queue(container, name) == subscription_queue(other, its_name)) == same


def test_the_separator_in_names_makes_no_other_pair() -> None:
    assert subscription_queue("a:b", "c") != subscription_queue("a", "b:c")
    assert subscription_queue("a\\c", "") != subscription_queue("a:", "")
