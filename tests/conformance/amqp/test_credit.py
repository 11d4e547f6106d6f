"""Proton's Python client: a receiver gets what it has credit for, never more, and may take credit back."""

import time

from tests.conformance.amqp.cluster import STRICT_CREDIT, STRICT_HOLD_SECONDS, AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient, bodies


def texts(first: int, end: int) -> list[str]:
    return [f"{number}" for number in range(first, end)]


def test_never_more_messages_come_than_credit_was_given(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*texts(0, 20))
    receiver = client.receiver(queue, credit=0)
    receiver.take_nothing()
    receiver.link.flow(3)
    assert bodies(receiver.take(3)) == texts(0, 3)
    receiver.take_nothing()
    receiver.link.flow(1)
    receiver.link.flow(4)
    assert bodies(receiver.take(5)) == texts(3, 8)
    receiver.take_nothing()


def test_two_receivers_share_a_queue_by_their_credit(client: ProtonClient, queue: str) -> None:
    one, two = client.receiver(queue, credit=3), client.receiver(queue, credit=2)
    client.sender(queue).send(*texts(0, 10))
    got = bodies([*one.take(3), *two.take(2)])
    assert sorted(got) == texts(0, 5)
    one.take_nothing()
    assert two.has() == 0


def test_credit_that_is_taken_back_is_not_used(client: ProtonClient, queue: str) -> None:
    sender, receiver = client.sender(queue), client.receiver(queue, credit=10)
    sender.send("first")
    receiver.take_one().accept()
    receiver.drain()
    sender.send("second")
    receiver.take_nothing()
    assert client.receiver(queue).take_one().body == "second"


def test_drain_of_an_empty_queue_is_answered_at_once(client: ProtonClient, queue: str) -> None:
    receiver = client.receiver(queue, credit=50)
    receiver.drain()
    assert receiver.has() == 0
    receiver.drain()


def test_drain_delivers_what_is_there_before_the_credit_is_back(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*texts(0, 5))
    receiver = client.receiver(queue, credit=0)
    receiver.link.flow(8)
    receiver.drain()
    assert bodies(receiver.take(5)) == texts(0, 5)
    client.sender(queue).send("later")
    receiver.take_nothing()
    receiver.link.flow(1)
    assert receiver.take_one().body == "later"


def test_drain_with_less_credit_than_messages_uses_all_of_it(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*texts(0, 10))
    receiver = client.receiver(queue, credit=0)
    receiver.link.flow(4)
    receiver.drain()
    assert bodies(receiver.take(4)) == texts(0, 4)
    receiver.take_nothing()


def test_drains_in_turn_with_credit_lose_nothing(client: ProtonClient, queue: str) -> None:
    sender, receiver = client.sender(queue), client.receiver(queue, credit=0)
    got: list[str] = []
    for round_ in range(10):
        sender.send(*texts(5 * round_, 5 * round_ + 5))
        receiver.link.flow(3)
        receiver.drain()
        got += bodies(receiver.take(receiver.has()))
        receiver.link.flow(4)
        receiver.drain()
        got += bodies(receiver.take(receiver.has()))
    assert got == texts(0, 50)


def test_sender_has_credit_for_as_many_as_may_be_unanswered(amqp: AmqpCluster, queue: str) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name="east"))
    with ProtonClient(amqp.strict_port) as client:
        sender = client.sender(queue)
        client.until(lambda: sender.link.credit > 0, "credit")
        assert sender.link.credit == STRICT_CREDIT
        sender.send(*texts(0, 100))
        assert bodies(client.receiver(queue).take(100)) == texts(0, 100)


def test_what_a_receiver_has_no_room_for_goes_to_others_in_time(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    """Its session's window is full, and nothing of it is read."""
    numbers = list(range(100, 300))
    client.sender(queue).send(*(f"{number}{'x' * 40_000}" for number in numbers))
    with ProtonClient(amqp.strict_port, max_frame_size=8_192) as full:
        session = full.conn.session()
        session.incoming_capacity = 65_536
        session.open()
        link = session.receiver("full")
        link.source.address = queue
        link.open()
        link.flow(200)
        full.pause(0.3)
        receiver = client.receiver(queue, credit=200)
        deadline = time.monotonic() + STRICT_HOLD_SECONDS + 20
        while receiver.has() < 50 and time.monotonic() < deadline:
            client.pause(0.1)
            full.pause(0.1)
        assert not full.connection.disconnected
        got = [int(one.body[:3]) for one in receiver.take(receiver.has())]
        assert len(got) >= 50
        assert got == sorted(got)
    rest = [int(one.body[:3]) for one in receiver.take(200 - len(got))]
    assert sorted(got + rest) == numbers
