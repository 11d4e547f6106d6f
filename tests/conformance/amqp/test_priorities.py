"""Priorities as stock Proton sends and receives them (AMQP 1.0, 3.2.1): what has a higher one is delivered first."""

from proton import Delivery, Message

from tests.conformance.amqp.cluster import AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient

SENT = (4, 0, 9, 4, 7, 0, 9)


def test_higher_priorities_are_received_first_and_of_one_what_was_sent_first(
    client: ProtonClient, queue: str
) -> None:
    messages = [Message(body=f"{number}", priority=level) for number, level in enumerate(SENT)]
    client.sender(queue).send(*messages)
    taken = client.receiver(queue).take(len(SENT))
    assert [(one.message.priority, one.body) for one in taken] == [
        (9, "2"),
        (9, "6"),
        (7, "4"),
        (4, "0"),
        (4, "3"),
        (0, "1"),
        (0, "5"),
    ]


def test_what_is_released_comes_again_in_its_place(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*[Message(body=f"{level}", priority=level) for level in (4, 9, 8)])
    receiver = client.receiver(queue, credit=2)
    first, second = receiver.take(2)
    assert (first.body, second.body) == ("9", "8")
    second.settle(Delivery.RELEASED)
    first.accept()
    assert [one.body for one in client.receiver(queue).take(2)] == ["8", "4"]


def test_priorities_above_those_of_jms_are_kept_and_count_as_the_highest(
    client: ProtonClient, queue: str
) -> None:
    levels = (4, 10, 255, 9)
    client.sender(queue).send(*[Message(body=f"{level}", priority=level) for level in levels])
    assert [one.message.priority for one in client.receiver(queue).take(4)] == [10, 255, 9, 4]


def test_priorities_cross_over_to_grpc_and_back(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(Message(body="low", priority=1), Message(body="plain"))
    amqp.run(amqp.session.publish(queue, [b"high"], priority=8))

    async def seen() -> list[tuple[int, bytes]]:
        return [(message.priority, message.body) async for message in amqp.session.browse(queue)]

    assert amqp.run(seen()) == [(1, b"low"), (4, b"plain"), (8, b"high")]
    taken = client.receiver(queue).take(3)
    assert [(one.message.priority, one.body) for one in taken] == [(8, b"high"), (4, "plain"), (1, "low")]
