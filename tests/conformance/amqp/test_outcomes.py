"""Proton's Python client: every outcome that a receiver may say, and what becomes of the message."""

import asyncio

import pytest
from proton import Delivery, Message, symbol

from lockstep.core.commands import QueueOptions
from tests.conformance.amqp.cluster import SETS, AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient, Received, SettledBySecond, bodies


def headers(received: list[Received]) -> list[tuple[str, int, bool]]:
    """Body, delivery count, and whether nobody had it before."""
    return [(one.body, one.message.delivery_count, one.message.first_acquirer) for one in received]


def test_accepted_message_is_gone(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two")
    receiver = client.receiver(queue, credit=1)
    receiver.take_one().accept()
    receiver.close()
    other = client.receiver(queue)
    assert headers(other.take()) == [("two", 0, True)]
    other.take_nothing()


def test_receiver_that_settles_second_hears_that_its_outcome_is_done(
    client: ProtonClient, queue: str
) -> None:
    client.sender(queue).send("one")
    receiver = client.receiver(queue, SettledBySecond())
    got = receiver.take_one()
    got.delivery.update(Delivery.ACCEPTED)
    client.until(lambda: got.delivery.settled, "the proxy settles")
    assert got.delivery.remote_state == Delivery.ACCEPTED
    got.delivery.settle()
    receiver.close()
    client.receiver(queue).take_nothing()


def test_rejected_message_goes_to_the_dead_letter_target(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    dead = f"{queue} dead"
    amqp.run(amqp.session.declare_queue(dead, set_name=SETS[0]))
    options = QueueOptions(dead_letter_exchange="", dead_letter_key=dead)
    amqp.run(amqp.session.declare_queue(queue, options, set_name=SETS[0]))
    client.sender(queue).send("bad", "good")
    receiver = client.receiver(queue)
    bad, good = receiver.take(2)
    bad.settle(Delivery.REJECTED)
    good.accept()
    letter = client.receiver(dead).take_one()
    assert letter.body == "bad"
    annotations = dict(letter.message.annotations or {})
    assert (annotations["x-last-death-queue"], annotations["x-last-death-reason"]) == (queue, "rejected")
    (death,) = annotations["x-opt-deaths"].elements
    assert death["count"] == 1 and death["first-time"] == death["last-time"] > 0
    receiver.take_nothing()


def test_rejected_message_of_a_queue_without_such_a_target_is_gone(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("bad")
    receiver = client.receiver(queue)
    receiver.take_one().settle(Delivery.REJECTED)
    receiver.take_nothing()


def test_released_message_comes_again_as_if_it_was_never_delivered(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one")
    receiver = client.receiver(queue, credit=1)
    receiver.take_one().settle(Delivery.RELEASED)
    receiver.link.flow(1)
    assert headers(receiver.take()) == [("one", 0, True)]


def test_modified_message_counts_a_delivery_only_if_it_failed(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one")
    receiver = client.receiver(queue)
    receiver.take_one().modify()
    again = receiver.take_one()
    assert headers([again]) == [("one", 0, True)]
    again.modify(failed=True)
    third = receiver.take_one()
    assert headers([third]) == [("one", 1, False)]
    third.modify(failed=True)
    assert headers([receiver.take_one()]) == [("one", 2, False)]


def test_what_is_said_of_a_modified_message_is_told_to_its_next_receiver(
    client: ProtonClient, queue: str
) -> None:
    client.sender(queue).send(Message(body="one", annotations={symbol("x-opt-kept"): "yes"}))
    receiver = client.receiver(queue)
    for number in range(2):
        got = receiver.take_one()
        got.delivery.local.annotations = {symbol("x-opt-why"): f"{number}"}
        got.modify(failed=number == 0)
    found = receiver.take_one().message
    assert found.annotations == {"x-opt-kept": "yes", "x-opt-why": "1"}
    assert found.delivery_count == 1


def test_message_settled_without_an_outcome_comes_again(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one")
    receiver = client.receiver(queue)
    receiver.take_one().settle(None)
    assert receiver.take_one().body == "one"


def test_what_was_delivered_too_often_goes_to_the_dead_letter_target(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    dead = f"{queue} dead"
    amqp.run(amqp.session.declare_queue(dead, set_name=SETS[0]))
    options = QueueOptions(dead_letter_exchange="", dead_letter_key=dead, delivery_count_max=2)
    amqp.run(amqp.session.declare_queue(queue, options, set_name=SETS[0]))
    client.sender(queue).send("poison")
    receiver = client.receiver(queue)
    receiver.take_one().modify(failed=True)
    receiver.take_one().modify(failed=True)
    assert client.receiver(dead).take_one().body == "poison"
    receiver.take_nothing()


@pytest.mark.parametrize("outcome", ["rejected", "modified"])
def test_what_a_client_says_before_it_closes_is_done_though_the_queue_ends_with_that(
    amqp: AmqpCluster, client: ProtonClient, outcome: str
) -> None:
    """Both go in one write."""
    queue = f"ends with its consumer, {outcome}"
    dead = f"{queue} dead"
    amqp.run(amqp.session.declare_queue(dead, set_name=SETS[0]))
    options = QueueOptions(
        is_auto_delete=True, dead_letter_exchange="", dead_letter_key=dead, delivery_count_max=1
    )
    amqp.run(amqp.session.declare_queue(queue, options, set_name=SETS[0]))
    client.sender(queue).send("one")
    receiver = client.receiver(queue)
    got = receiver.take_one()
    if outcome == "rejected":
        got.settle(Delivery.REJECTED)
    else:
        got.modify(failed=True)
    receiver.close()
    assert client.receiver(dead).take_one().body == "one"


def test_undeliverable_here_goes_to_others_only(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two")
    receiver = client.receiver(queue)
    one, _ = receiver.take(2)
    one.modify(failed=True, undeliverable=True)
    receiver.take_nothing()
    assert headers([client.receiver(queue).take_one()]) == [("one", 1, False)]


def test_what_comes_back_is_delivered_in_the_original_order(client: ProtonClient, queue: str) -> None:
    sent = [f"{number}" for number in range(10)]
    client.sender(queue).send(*sent)
    receiver = client.receiver(queue, credit=10)
    for one in reversed(receiver.take(10)):
        one.settle(Delivery.RELEASED)
    receiver.link.flow(10)
    assert bodies(receiver.take(10)) == sent


def test_what_a_closed_link_had_comes_back_in_order_and_uncounted(client: ProtonClient, queue: str) -> None:
    sent = [f"{number}" for number in range(10)]
    client.sender(queue).send(*sent)
    receiver = client.receiver(queue, credit=5)
    receiver.take(5)
    receiver.close()
    assert headers(client.receiver(queue).take(10)) == [(body, 0, True) for body in sent]


def test_what_a_lost_connection_had_comes_back_in_order_and_counted(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    sent = [f"{number}" for number in range(6)]
    client.sender(queue).send(*sent)
    other = ProtonClient(amqp.port)
    other.receiver(queue, credit=4).take(4)
    other.lose()
    receiver = client.receiver(queue)
    expected = [(body, 1, False) for body in sent[:4]] + [(body, 0, True) for body in sent[4:]]
    assert sorted(headers(receiver.take(6))) == expected
    receiver.close()
    assert headers(client.receiver(queue).take(6)) == expected


def test_sender_is_answered_only_when_the_message_is_there(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    sender = client.sender(queue)
    sender.send(*(f"{number}" for number in range(50)))

    async def count() -> int:
        description = await amqp.session.describe(await amqp.session.set_of_target("", queue))
        return next(one.length for one in description.queues if one.name == queue)

    assert amqp.run(asyncio.wait_for(count(), 30)) == 50
