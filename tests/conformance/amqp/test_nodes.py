"""Proton's Python client: addresses, nodes made on demand or for a connection, and the ends of links."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from proton import Delivery, Message, Terminus
from proton.utils import LinkDetached, SyncRequestResponse

from lockstep.core.commands import QueueOptions
from lockstep.core.errors import Rejected
from tests.conformance.amqp.cluster import SETS, AmqpCluster
from tests.conformance.amqp.proton_client import Capabilities, DynamicTarget, ProtonClient, bodies, sent


def declare(amqp: AmqpCluster, name: str, options: QueueOptions | None = None) -> None:
    amqp.run(amqp.session.declare_queue(name, options, set_name=SETS[0]))


def exists(amqp: AmqpCluster, name: str) -> bool:
    """Whether the directory knows a queue."""
    amqp.session.forget_target("", name)
    try:
        amqp.run(amqp.session.set_of_target("", name))
    except Rejected:
        return False
    return True


# --- making nodes ---


def test_queue_that_is_nowhere_is_made_when_a_client_names_it(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    client.receiver(f"{queue} as a source")
    client.sender(f"{queue} as a target")
    client.sender(f"{queue} by capability", Capabilities("queue"))
    client.sender(f"queue://{queue} by prefix")
    for name in ("as a source", "as a target", "by capability", "by prefix"):
        assert exists(amqp, f"{queue} {name}"), name


def test_topic_is_made_for_the_capability_and_for_the_prefix(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    for sending, receiving in (
        (client.sender(queue, Capabilities("topic")), client.receiver(queue, Capabilities("topic"))),
        (client.sender(f"topic://{queue} 2"), client.receiver(f"topic://{queue} 2")),
    ):
        sending.send("news")
        assert receiving.take_one().body == "news"
    assert not exists(amqp, queue)


@pytest.mark.parametrize("prefix", ["", "queue://"])
@pytest.mark.parametrize("kind", ["container:", "subscription:", "temporary-queue:"])
def test_queue_that_proxies_make_is_not_made_by_naming_it(
    amqp: AmqpCluster, client: ProtonClient, queue: str, prefix: str, kind: str
) -> None:
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        client.sender(f"{prefix}{kind}{queue}")
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        client.receiver(f"{prefix}{kind}{queue}", Capabilities("queue"))
    assert not exists(amqp, f"{kind}{queue}")


def test_unknown_addresses_are_refused_where_the_policy_makes_no_nodes(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.strict_port) as client:
        for options in ((), (Capabilities("queue"),), (Capabilities("topic"),)):
            with pytest.raises(LinkDetached, match="amqp:not-found"):
                client.sender(queue, *options)
            with pytest.raises(LinkDetached, match="amqp:not-found"):
                client.receiver(queue, *options)
        declare(amqp, queue)
        client.sender(queue).send("one")
        assert client.receiver(queue).take_one().body == "one"
    assert not exists(amqp, f"{queue} that nobody made")


def test_refused_link_is_attached_without_termini_and_then_detached(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.strict_port) as client:
        with pytest.raises(LinkDetached, match="amqp:not-found") as sending:
            client.sender(queue)
        with pytest.raises(LinkDetached, match="amqp:not-found") as receiving:
            client.receiver(queue)
        for refused in (sending, receiving):
            link = refused.value.link
            assert link.remote_source.type == link.remote_target.type == Terminus.UNSPECIFIED


# --- nodes of a connection ---


def test_dynamic_source_is_a_queue_that_others_may_send_to(amqp: AmqpCluster, client: ProtonClient) -> None:
    receiver = client.receiver(None, dynamic=True)
    assert receiver.link.remote_source.dynamic
    with ProtonClient(amqp.port) as other:
        other.sender(receiver.address).send("one", "two")
    assert bodies(receiver.take(2)) == ["one", "two"]


def test_dynamic_target_is_a_queue_of_its_connection(amqp: AmqpCluster, client: ProtonClient) -> None:
    sender = client.sender(None, DynamicTarget())
    assert sender.address
    sender.send("one")
    assert client.receiver(sender.address).take_one().body == "one"
    with ProtonClient(amqp.port) as other:
        other.sender(sender.address).send("two")
        with pytest.raises(LinkDetached, match="amqp:resource-locked"):
            other.receiver(sender.address)


def test_dynamic_nodes_end_with_their_link_or_connection(amqp: AmqpCluster, client: ProtonClient) -> None:
    receiver = client.receiver(None, dynamic=True)
    receiver.close()
    with ProtonClient(amqp.port) as other:
        kept = other.sender(None, DynamicTarget()).address
        assert exists(amqp, kept)
    lost = ProtonClient(amqp.port)
    forgotten = lost.receiver(None, dynamic=True).address
    lost.lose()
    names = receiver.address, kept, forgotten
    client.until(lambda: not any(exists(amqp, name) for name in names), f"{names} are gone")


def answer_requests(port: int, queue: str, count: int) -> None:
    """Answers each number with its double, where it asks to be answered."""
    with ProtonClient(port) as client:
        requests, answers = client.receiver(queue), client.sender(None)
        for _ in range(count):
            got = requests.take_one()
            got.accept()
            asked = got.message
            assert isinstance(asked.body, int)
            doubled = Message(
                body=2 * asked.body, address=asked.reply_to, correlation_id=asked.correlation_id
            )
            answers.send(doubled)


def test_requests_are_answered_over_dynamic_sources(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    with ThreadPoolExecutor() as pool:
        answering = pool.submit(answer_requests, amqp.port, queue, 5)
        asking = SyncRequestResponse(client.connection, queue)
        assert [asking.call(Message(body=number)).body for number in range(5)] == [0, 2, 4, 6, 8]
        answering.result(timeout=30)


# --- addresses ---


def test_anonymous_relay_sends_each_message_where_its_to_says(client: ProtonClient, queue: str) -> None:
    names = [f"{queue} {number}" for number in range(4)]
    receivers = [client.receiver(name) for name in names]
    assert "ANONYMOUS-RELAY" in [str(name) for name in client.conn.remote_offered_capabilities or ()]
    relay = client.sender(None)
    relay.send(*(Message(body=f"{turn}", address=name) for turn in range(5) for name in names))
    for receiver in receivers:
        assert bodies(receiver.take(5)) == [f"{turn}" for turn in range(5)]


def test_anonymous_relay_rejects_what_names_no_node(amqp: AmqpCluster, queue: str) -> None:
    declare(amqp, queue)
    with ProtonClient(amqp.strict_port) as client:
        relay = client.sender(None)
        assert relay.refusal(Message(body="?", address=f"{queue} nowhere")) == "amqp:not-found"
        assert relay.refusal(Message(body="?")) == "amqp:invalid-field"
        deliveries = [
            relay.start(Message(body="1", address=queue)),
            relay.start(Message(body="2", address=f"{queue} nowhere either")),
            relay.start(Message(body="3", address=queue)),
        ]
        outcomes = [relay.outcome(delivery) for delivery in deliveries]
        assert outcomes == [Delivery.ACCEPTED, Delivery.REJECTED, Delivery.ACCEPTED]
        assert bodies(client.receiver(queue).take(2)) == ["1", "3"]


def test_address_with_a_slash_is_an_exchange_and_a_routing_key(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    exchange = f"{queue} exchange"
    amqp.run(amqp.session.declare_exchange(exchange, "topic", set_name=SETS[0]))
    for name, key in (("europe", "eu.*"), ("paris", "eu.paris")):
        declare(amqp, f"{queue} {name}")
        amqp.run(amqp.session.bind(exchange, f"{queue} {name}", key))
    client.sender(f"{exchange}/eu.paris").send("paris")
    client.sender(None).send(Message(body="rome", address=f"{exchange}/eu.rome"))
    assert bodies(client.receiver(f"{queue} europe").take(2)) == ["paris", "rome"]
    paris = client.receiver(f"{queue} paris")
    assert paris.take_one().body == "paris"
    paris.take_nothing()


def test_queue_whose_name_has_a_slash_is_found_by_it(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    declare(amqp, f"{queue}/one")
    client.sender(f"{queue}/one").send("hello")
    assert client.receiver(f"{queue}/one").take_one().body == "hello"


def test_what_a_full_queue_does_not_take_is_rejected(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    declare(amqp, queue, QueueOptions(length_max=2))
    sender = client.sender(queue)
    deliveries = [sender.start(f"{number}") for number in range(4)]
    outcomes = [sender.outcome(delivery) for delivery in deliveries]
    assert outcomes == [Delivery.ACCEPTED] * 2 + [Delivery.REJECTED] * 2
    condition = deliveries[3].remote.condition
    assert condition is not None and condition.name == "amqp:resource-limit-exceeded"


# --- the ends of links ---


def test_receiver_of_a_deleted_queue_is_told_so(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    receiver = client.receiver(queue)
    amqp.run(amqp.session.delete_queue(queue))
    client.until(lambda: receiver.is_ended, "the link ends")
    assert receiver.condition == "amqp:resource-deleted"


def test_sender_to_a_deleted_queue_hears_a_rejection(amqp: AmqpCluster, queue: str) -> None:
    declare(amqp, queue)
    with ProtonClient(amqp.strict_port) as client:
        sender = client.sender(queue)
        sender.send("one")
        amqp.run(amqp.session.delete_queue(queue))
        assert sender.refusal("two") == "amqp:not-found"


def test_link_closed_by_its_client_may_be_attached_again(client: ProtonClient, queue: str) -> None:
    for turn in range(3):
        sender, receiver = client.sender(queue, name="sender"), client.receiver(queue, name="receiver")
        sender.send(f"{turn}")
        receiver.take_one().accept()
        sender.close()
        receiver.close()


def test_detached_link_is_detached_and_not_closed(client: ProtonClient, queue: str) -> None:
    receiver = client.receiver(queue)
    receiver.link.detach()
    client.until(lambda: receiver.is_ended, "the proxy detaches")
    assert receiver.condition is None


def test_many_sessions_and_links_are_all_served(client: ProtonClient, queue: str) -> None:
    sessions = [client.conn.session() for _ in range(30)]
    for session in sessions:
        session.open()
    senders = [session.sender(f"{queue} {number}") for number, session in enumerate(sessions)]
    for number, sender in enumerate(senders):
        sender.target.address = f"{queue} {number % 10}"
        sender.open()
    client.until(lambda: all(sender.credit for sender in senders), "credit of all links")
    deliveries = [sent(sender, Message(body="one")) for sender in senders]
    client.until(lambda: all(delivery.settled for delivery in deliveries), "all are settled")
    receivers = [client.receiver(f"{queue} {number % 10}", credit=1) for number in range(30)]
    for receiver in receivers:
        receiver.take_one().accept()
    for session in sessions:
        session.close()
    client.until(lambda: not any(s.state & s.REMOTE_ACTIVE for s in sessions), "all sessions are closed")


def test_session_that_closes_gives_back_what_its_links_had(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one")
    session = client.conn.session()
    session.open()
    receiver = session.receiver("of a session")
    receiver.source.address = queue
    receiver.open()
    receiver.flow(1)
    client.until(lambda: receiver.queued > 0, "the message comes")
    session.close()
    assert client.receiver(queue).take_one().body == "one"
