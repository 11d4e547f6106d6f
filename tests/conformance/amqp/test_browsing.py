"""Proton's Python client: browsers see a queue and take nothing; selectors choose."""

import pytest
from proton import Delivery, Message, symbol
from proton.reactor import Copy, Selector
from proton.utils import LinkDetached

from tests.conformance.amqp.proton_client import ProtonClient, Received, bodies


def colours(*, with_priorities: bool = False) -> list[Message]:
    """Those with priorities come the last one first."""
    return [
        Message(
            body=f"{number}",
            subject="even" if number % 2 == 0 else "odd",
            priority=number if with_priorities else 4,
        )
        for number in range(6)
    ]


def numbered(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def test_browser_is_shown_everything_and_takes_nothing(client: ProtonClient, queue: str) -> None:
    sent = numbered(*range(10))
    client.sender(queue).send(*sent)
    for state in (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, None):
        browser = client.receiver(queue, Copy())
        got = browser.take(10)
        assert bodies(got) == sent
        for one in got:
            one.settle(state)
        browser.take_nothing()
        browser.close()
    got = client.receiver(queue).take(10)
    assert bodies(got) == sent
    assert [one.message.delivery_count for one in got] == [0] * 10


def test_browser_is_shown_what_a_receiver_has_in_its_hands(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two")
    client.receiver(queue, credit=1).take_one()
    assert bodies(client.receiver(queue, Copy()).take(2)) == ["one", "two"]


def test_browser_drains_like_a_receiver(client: ProtonClient, queue: str) -> None:
    sender, browser = client.sender(queue), client.receiver(queue, Copy(), credit=10)
    sender.send(*numbered(1, 2, 3))
    browser.drain()
    assert bodies(browser.take(3)) == numbered(1, 2, 3)
    sender.send("later")
    browser.take_nothing()
    browser.link.flow(5)
    assert browser.take_one().body == "later"


def test_selector_of_a_receiver_leaves_the_rest_to_others(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(
        Message(body="red 1", properties={"colour": "red", "size": 1}),
        Message(body="blue 2", properties={"colour": "blue", "size": 2}),
        Message(body="red 3", properties={"colour": "red", "size": 3}),
        Message(body="none"),
    )
    chooser = client.receiver(queue, Selector("colour = 'red' AND size > 1"))
    assert bodies(chooser.take()) == ["red 3"]
    chooser.take_nothing()
    assert bodies(client.receiver(queue).take(3)) == ["red 1", "blue 2", "none"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("JMSPriority >= 4", numbered(5, 4)),
        ("JMSType = 'odd'", numbered(5, 3, 1)),
        ("JMSPriority BETWEEN 1 AND 2", numbered(2, 1)),
        ("colour IS NULL AND JMSType IN ('even')", numbered(4, 2, 0)),
    ],
)
def test_selectors_know_the_header_and_the_properties(
    client: ProtonClient, queue: str, selector: str, expected: list[str]
) -> None:
    client.sender(queue).send(*colours(with_priorities=True))
    assert bodies(client.receiver(queue, Selector(selector)).take(len(expected))) == expected


def test_selector_is_said_back_as_it_is_applied(client: ProtonClient, queue: str) -> None:
    receiver = client.receiver(queue, Selector("colour = 'red'"))
    filters = receiver.link.remote_source.filter
    filters.rewind()
    filters.next()
    found = filters.get_object()
    assert list(found) == [symbol("selector")]
    assert found[symbol("selector")].value == "colour = 'red'"


def test_selector_that_is_none_refuses_the_link(client: ProtonClient, queue: str) -> None:
    client.sender(queue)
    receiver: list[Received] = []
    with pytest.raises(LinkDetached, match="amqp:invalid-field"):
        receiver += client.receiver(queue, Selector("colour = = 'red'")).take()
    assert receiver == []


def test_browser_with_a_selector_is_shown_what_matches(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*colours())
    browser = client.receiver(queue, Copy(), Selector("JMSType = 'even'"))
    assert bodies(browser.take(3)) == numbered(0, 2, 4)
    browser.take_nothing()
    assert bodies(client.receiver(queue).take(6)) == numbered(*range(6))


def test_selected_messages_come_as_they_are_sent(client: ProtonClient, queue: str) -> None:
    chooser = client.receiver(queue, Selector("JMSType = 'odd'"), credit=2)
    client.sender(queue).send(*colours())
    assert bodies(chooser.take(2)) == numbered(1, 3)
    chooser.take_nothing()
    chooser.link.flow(5)
    assert bodies(chooser.take()) == numbered(5)
