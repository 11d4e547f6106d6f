"""Proton's Python client: subscriptions of exchanges, for as long as somebody listens or durable."""

import pytest
from proton import Delivery, Message, Terminus
from proton.reactor import DurableSubscription, Selector
from proton.utils import LinkDetached

from lockstep.core.errors import Rejected
from tests.conformance.amqp.cluster import SETS, AmqpCluster
from tests.conformance.amqp.proton_client import Capabilities, DynamicTarget, ProtonClient, Receiving, bodies


def detach(client: ProtonClient, receiver: Receiving) -> None:
    """Stops listening, and keeps the subscription."""
    receiver.link.detach()
    client.until(lambda: receiver.is_ended, "the proxy detaches")


def durable(client: ProtonClient, topic: str, name: str, selector: str = "") -> Receiving:
    options = [DurableSubscription(), *([Selector(selector)] if selector else [])]
    return client.receiver(f"topic://{topic}", *options, name=name)


def test_every_subscriber_gets_every_message(client: ProtonClient, queue: str) -> None:
    subscribers = [client.receiver(f"topic://{queue}") for _ in range(3)]
    client.sender(f"topic://{queue}").send("one", "two")
    for subscriber in subscribers:
        assert bodies(subscriber.take(2)) == ["one", "two"]


def test_subscriber_gets_nothing_from_before_or_after_it_listens(client: ProtonClient, queue: str) -> None:
    sender = client.sender(f"topic://{queue}")
    sender.send("before")
    subscriber = client.receiver(f"topic://{queue}")
    sender.send("while")
    assert subscriber.take_one().body == "while"
    subscriber.close()
    sender.send("after")
    client.receiver(f"topic://{queue}").take_nothing()


def test_subscriber_chooses_by_the_key_of_its_address(client: ProtonClient, queue: str) -> None:
    europe, all_ = client.receiver(f"topic://{queue}/eu.*"), client.receiver(f"topic://{queue}")
    for key in ("eu.paris", "us.boston", "eu.rome"):
        client.sender(f"topic://{queue}/{key}").send(key)
    assert bodies(europe.take(2)) == ["eu.paris", "eu.rome"]
    assert bodies(all_.take(3)) == ["eu.paris", "us.boston", "eu.rome"]
    europe.take_nothing()


def test_subscriber_chooses_by_a_selector(client: ProtonClient, queue: str) -> None:
    subscriber = client.receiver(f"topic://{queue}", Selector("colour = 'red'"))
    client.sender(f"topic://{queue}").send(
        Message(body="blue", properties={"colour": "blue"}), Message(body="red", properties={"colour": "red"})
    )
    assert subscriber.take_one().body == "red"
    subscriber.take_nothing()


def test_durable_subscription_keeps_what_comes_while_nobody_listens(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, container=queue) as client:
        sender = client.sender(f"topic://{queue}")
        subscriber = durable(client, queue, "news")
        sender.send("while it listens")
        subscriber.take_one().accept()
        detach(client, subscriber)
        sender.send("while it does not", "nor now")
    with ProtonClient(amqp.port, container=queue) as client:
        client.sender(f"topic://{queue}").send("with another connection")
        again = durable(client, queue, "news")
        assert again.link.remote_source.durability == Terminus.DELIVERIES
        expected = ["while it does not", "nor now", "with another connection"]
        assert bodies(again.take(3)) == expected
        again.close()


def test_durable_subscriptions_belong_to_their_container_and_name(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, container="one") as one, ProtonClient(amqp.port, container="two") as two:
        subscribers = [durable(one, queue, "a"), durable(one, queue, "b"), durable(two, queue, "a")]
        one.sender(f"topic://{queue}").send("news")
        for subscriber in subscribers:
            assert subscriber.take_one().body == "news"
            subscriber.close()


def test_closing_a_durable_subscription_ends_it(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, container=queue) as client:
        subscriber = durable(client, queue, "news")
        detach(client, subscriber)
        sender = client.sender(f"topic://{queue}")
        sender.send("never seen")
        durable(client, queue, "news").close()
        sender.send("nor this")
        durable(client, queue, "news").take_nothing()


def test_a_durable_subscription_ends_behind_what_its_subscriber_has_rejected(
    amqp: AmqpCluster, queue: str
) -> None:
    """Both go in one write."""
    with ProtonClient(amqp.port, container=queue) as client:
        subscriber = durable(client, queue, "news")
        client.sender(f"topic://{queue}").send("one")
        subscriber.take_one().settle(Delivery.REJECTED)
        subscriber.close()
        assert subscriber.condition is None
        with pytest.raises(LinkDetached):
            client.receiver(None, name="news")


def test_durable_subscription_has_one_listener_at_a_time(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, container=queue) as one, ProtonClient(amqp.port, container=queue) as two:
        subscriber = durable(one, queue, "news")
        with pytest.raises(LinkDetached, match="amqp:resource-locked"):
            durable(two, queue, "news")
        detach(one, subscriber)
        durable(two, queue, "news").close()


def test_another_selector_or_topic_is_a_new_durable_subscription(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, container=queue) as client:
        sender = client.sender(f"topic://{queue}")
        detach(client, durable(client, queue, "news", "colour = 'red'"))
        sender.send(Message(body="old", properties={"colour": "red"}))
        blue = durable(client, queue, "news", "colour = 'blue'")
        sender.send(
            Message(body="red", properties={"colour": "red"}),
            Message(body="blue", properties={"colour": "blue"}),
        )
        assert blue.take_one().body == "blue"
        blue.take_nothing()
        blue.close()


def make_topic_again(amqp: AmqpCluster, topic: str) -> None:
    async def make() -> None:
        set_name = await amqp.session.set_of_target(topic, "")
        await amqp.session.delete_exchange(topic)
        await amqp.session.declare_exchange(topic, "topic", set_name=set_name)

    amqp.run(make())


@pytest.mark.parametrize(
    ("selector", "expected"), [("colour = 'red'", ["old", "red"]), ("colour = 'blue'", ["blue"])]
)
def test_a_durable_subscription_whose_topic_was_made_again_is_the_same_by_its_selector_alone(
    amqp: AmqpCluster, selector: str, expected: list[str]
) -> None:
    """JMS 2.0, 8.3.3: with another one it is as if the old one had been deleted."""
    topic = f"again-{expected[0]}"
    with ProtonClient(amqp.port, container=topic) as client:
        sender = client.sender(f"topic://{topic}")
        detach(client, durable(client, topic, "news", "colour = 'red'"))
        sender.send(Message(body="old", properties={"colour": "red"}))
        make_topic_again(amqp, topic)
        again = durable(client, topic, "news", selector)
        client.sender(f"topic://{topic}").send(
            Message(body="red", properties={"colour": "red"}),
            Message(body="blue", properties={"colour": "blue"}),
        )
        taken = again.take(len(expected))
        assert bodies(taken) == expected
        again.take_nothing()
        again.close()


def test_dynamic_topic_has_subscribers_and_ends_with_its_link(client: ProtonClient) -> None:
    sender = client.sender(None, DynamicTarget(), Capabilities("temporary-topic"))
    subscribers = [client.receiver(sender.address) for _ in range(2)]
    sender.send("one")
    for subscriber in subscribers:
        assert subscriber.take_one().body == "one"


def test_subscriptions_leave_nothing_behind(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    async def queues() -> set[str]:
        return {one.name for name in SETS for one in (await amqp.session.describe(name)).queues}

    before = amqp.run(queues())
    subscriber = client.receiver(f"topic://{queue}")
    with ProtonClient(amqp.port, container=queue) as other:
        other.receiver(f"topic://{queue}")
        named = durable(other, queue, "news")
        named.close()
    subscriber.close()
    client.until(lambda: amqp.run(queues()) <= before, "all queues of subscriptions are gone")


def test_topic_cannot_be_made_where_the_policy_forbids_it(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.strict_port) as client, pytest.raises(LinkDetached, match="amqp:not-found"):
        client.receiver(f"topic://{queue}")
    with pytest.raises(Rejected):
        amqp.run(amqp.session.set_of_target(queue, ""))
