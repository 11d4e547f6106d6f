"""Proton's Python client: what is sent is received, as it was."""

import time
from typing import Any
from uuid import UUID

import pytest
from proton import Delivery, Message, symbol, ulong
from proton.reactor import AtMostOnce
from proton.utils import BlockingConnection, LinkDetached

from tests.conformance.amqp.cluster import AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient, bodies

MIB = 1024 * 1024


def test_blocking_client_sends_and_receives(amqp: AmqpCluster, queue: str) -> None:
    connection = BlockingConnection(f"127.0.0.1:{amqp.port}", timeout=30)
    try:
        sender = connection.create_sender(queue)
        assert sender.send(Message(body="hello")).remote_state == Delivery.ACCEPTED
        receiver = connection.create_receiver(queue)
        assert receiver.receive().body == "hello"
        receiver.accept()
    finally:
        connection.close()


def test_messages_come_in_the_order_in_which_they_were_sent(client: ProtonClient, queue: str) -> None:
    expected = [f"message {number}" for number in range(300)]
    client.sender(queue).send(*expected)
    assert bodies(client.receiver(queue, credit=300).take(300)) == expected


def test_everything_in_a_message_arrives_as_it_was_sent(client: ProtonClient, queue: str) -> None:
    sent = Message(
        body={"list": [1, "two", None], "nested": {"binary": b"\x00\xff"}},
        id=UUID(int=7),
        user_id=b"ada",
        address=queue,
        subject="a subject",
        reply_to="elsewhere",
        correlation_id="correlation",
        content_type=symbol("application/json"),
        content_encoding=symbol("identity"),
        creation_time=1_700_000_000.0,
        group_id="group",
        group_sequence=3,
        reply_to_group_id="other group",
        properties={"text": "value", "number": 42, "flag": True, "nothing": None},
        annotations={symbol("x-opt-note"): "kept"},
        priority=7,
        durable=True,
    )
    client.sender(queue).send(sent)
    got = client.receiver(queue).take_one().message
    for name in (
        *("body", "id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type"),
        *("content_encoding", "creation_time", "group_id", "group_sequence", "reply_to_group_id"),
        *("properties", "annotations", "priority", "durable"),
    ):
        assert getattr(got, name) == getattr(sent, name), name


def test_bodies_of_every_type_arrive_as_they_were_sent(client: ProtonClient, queue: str) -> None:
    sender, receiver = client.sender(queue), client.receiver(queue)
    values: list[Any] = [b"data", b"", "text", "", 42, True, None, [1, "two"], {"key": "value"}, 1.5]
    for body in [*values, UUID(int=1), symbol("symbol"), ulong(7)]:
        for is_inferred in (False, True):
            sender.send(Message(body=body, inferred=is_inferred))
            got = receiver.take_one()
            got.accept()
            assert (got.body, type(got.body)) == (body, type(body)), (body, is_inferred)


def test_header_says_durable_only_for_what_was_sent_as_durable(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(Message(body="kept", durable=True), Message(body="not kept"))
    kept, not_kept = client.receiver(queue).take(2)
    assert (kept.message.durable, not_kept.message.durable) == (True, False)


def test_header_has_the_priority_that_was_sent(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*(Message(body=str(priority), priority=priority) for priority in (0, 4, 9)))
    assert [one.message.priority for one in client.receiver(queue).take(3)] == [9, 4, 0]


def test_expired_message_is_not_delivered_and_a_late_one_has_less_to_live(
    client: ProtonClient, queue: str
) -> None:
    client.sender(queue).send(
        Message(body="short", ttl=0.2), Message(body="long", ttl=60), Message(body="for ever")
    )
    time.sleep(0.4)
    long, for_ever = client.receiver(queue).take(2)
    assert (long.body, for_ever.body) == ("long", "for ever")
    assert 50 < long.message.ttl < 59.8
    assert for_ever.message.ttl == 0


def test_message_expires_by_its_absolute_expiry_time(client: ProtonClient, queue: str) -> None:
    now = time.time()
    client.sender(queue).send(
        Message(body="past", expiry_time=now - 1),
        Message(body="soon", expiry_time=now + 0.2, ttl=60),
        Message(body="later", expiry_time=now + 60),
    )
    time.sleep(0.4)
    later = client.receiver(queue).take_one()
    assert later.body == "later"
    assert 50 < later.message.ttl < 60


@pytest.mark.parametrize("is_presettled", [False, True])
def test_presettled_messages_are_received_like_others(
    client: ProtonClient, queue: str, is_presettled: bool
) -> None:
    sender = client.sender(queue, AtMostOnce())
    for number in range(20):
        sender.start(f"{number}")
    receiver = client.receiver(queue, *([AtMostOnce()] if is_presettled else []))
    got = receiver.take(20)
    assert bodies(got) == [f"{number}" for number in range(20)]
    assert [one.delivery.settled for one in got] == [is_presettled] * 20


def test_what_was_delivered_presettled_is_gone(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two")
    receiver = client.receiver(queue, AtMostOnce(), credit=1)
    assert receiver.take_one().body == "one"
    receiver.close()
    other = client.receiver(queue)
    assert other.take_one().body == "two"
    other.take_nothing()


def test_messages_of_all_sizes_arrive_whole(client: ProtonClient, queue: str) -> None:
    sender, receiver = client.sender(queue), client.receiver(queue, credit=1)
    for size in (1, 255, 256, 1000, 64 * 1024, 131_000, MIB, 20 * MIB):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        sender.send(Message(body=body, inferred=True))
        got = receiver.take_one()
        got.accept()
        assert got.body == body, size
        receiver.link.flow(1)


def test_message_beyond_the_limit_ends_its_link_and_nothing_else(client: ProtonClient, queue: str) -> None:
    sender, other = client.sender(queue), client.sender(queue)
    limit = sender.link.remote_max_message_size
    assert limit == 32 * MIB
    sender.start(Message(body=bytes(limit + MIB), inferred=True))
    client.until(lambda: sender.is_ended, "the link ends")
    assert sender.condition == "amqp:link:message-size-exceeded"
    other.send("small")
    assert client.receiver(queue).take_one().body == "small"


def test_smallest_frames_carry_large_messages_both_ways(amqp: AmqpCluster, queue: str) -> None:
    body = bytes(range(256)) * 400
    with ProtonClient(amqp.port, max_frame_size=512) as client:
        client.sender(queue).send(Message(body=body, inferred=True), Message(body="x" * 700))
        large, text = client.receiver(queue).take(2)
        assert large.body == body
        assert text.body == "x" * 700


def test_message_that_its_sender_aborts_did_not_happen(client: ProtonClient, queue: str) -> None:
    sender = client.sender(queue)
    client.until(lambda: sender.link.credit > 0, "credit")
    delivery = sender.link.delivery("aborted")
    sender.link.stream(Message(body=b"x" * 300_000).encode()[:200_000])
    client.pause(0.05)
    delivery.abort()
    sender.send("whole")
    receiver = client.receiver(queue)
    assert receiver.take_one().body == "whole"
    receiver.take_nothing()


def test_refused_by_blocking_client_when_the_link_ends(amqp: AmqpCluster, queue: str) -> None:
    connection = BlockingConnection(f"127.0.0.1:{amqp.strict_port}", timeout=30)
    try:
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_sender(f"{queue} that is nowhere")
    finally:
        connection.close()
