"""Proton's Python client: local transactions (AMQP 1.0, part 4)."""

from functools import partial

import pytest
from proton import Delivery, Event, Message, Sender, symbol
from proton.handlers import TransactionHandler
from proton.reactor import Transaction

from lockstep.core.commands import QueueOptions
from tests.conformance.amqp.cluster import SETS, STRICT_TRANSACTION_SECONDS, AmqpCluster, name_in
from tests.conformance.amqp.proton_client import ProtonClient, Received, bodies, sent
from tests.conformance.amqp.proton_transactions import (
    TRANSACTIONAL,
    Coordinator,
    post,
    refusal_of_post,
    retire,
    start_post,
)

UNKNOWN = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
NOT_FOUND, INVALID_FIELD = "amqp:not-found", "amqp:invalid-field"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"


def headers(received: list[Received]) -> list[tuple[str, int]]:
    return [(one.body, one.message.delivery_count) for one in received]


class Recorder(TransactionHandler):
    """What Proton's own handler is told."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction: Transaction | None = None
        self.heard: list[str] = []
        self.reason = ""
        """Of a commit that failed."""

    def has_heard(self, count: int) -> bool:
        return len(self.heard) >= count

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        # Proton's Python gives a view into the delivery that it settles next.
        event.transaction.id = bytes(event.transaction.id)
        self.heard.append("declared")

    def on_transaction_committed(self, event: Event) -> None:
        self.heard.append("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self.heard.append("aborted")

    def on_transaction_commit_failed(self, event: Event) -> None:
        self.heard.append("commit failed")
        assert event.delivery is not None
        self.reason = str(event.delivery.remote.condition)


@pytest.mark.parametrize("is_settled", [False, True])
def test_protons_own_transactions_move_messages_between_queues(
    client: ProtonClient, queue: str, is_settled: bool
) -> None:
    client.sender(queue).send("one", "two", "three")
    receiver, sender = client.receiver(queue, credit=1), client.sender(f"{queue} moved")
    client.until(lambda: sender.link.credit > 0, "credit")
    for word, is_committed in (("one", True), ("two", False), ("two", True)):
        recorder = Recorder()
        connection = client.conn
        client.connection.container.declare_transaction(connection, recorder, is_settled)
        client.until(partial(recorder.has_heard, 1), "it is declared")
        assert recorder.heard == ["declared"] and recorder.transaction is not None
        got = receiver.take_one()
        assert got.body == word
        recorder.transaction.accept(got.delivery)
        recorder.transaction.send(sender.link, Message(body=f"moved {word}"))
        if is_committed:
            recorder.transaction.commit()
        else:
            recorder.transaction.abort()
        client.until(partial(recorder.has_heard, 2), "it is discharged")
        assert recorder.heard[1:] == ["committed" if is_committed else "aborted"]
        receiver.link.flow(1)
    assert bodies(client.receiver(f"{queue} moved").take(2)) == ["moved one", "moved two"]
    assert receiver.take_one().body == "three"


def test_coordinator_takes_several_requests_at_once(client: ProtonClient) -> None:
    link = Coordinator(client).sending.link
    client.until(lambda: link.credit > 0, "credit")
    assert link.credit >= 2


def test_posts_are_seen_when_the_transaction_commits_and_all_of_them(
    client: ProtonClient, queue: str
) -> None:
    coordinator, receiver = Coordinator(client), client.receiver(queue)
    transaction = coordinator.declare()
    post(client.sender(queue), transaction, "one", "two", "three")
    receiver.take_nothing()
    coordinator.commit(transaction)
    assert bodies(receiver.take(3)) == ["one", "two", "three"]


def test_posts_of_a_rolled_back_transaction_are_never_seen(client: ProtonClient, queue: str) -> None:
    coordinator, sender = Coordinator(client), client.sender(queue)
    transaction = coordinator.declare()
    post(sender, transaction, "no", "nor this")
    coordinator.rollback(transaction)
    sender.send("yes")
    receiver = client.receiver(queue)
    assert receiver.take_one().body == "yes"
    receiver.take_nothing()


def test_retired_messages_are_gone_when_it_commits(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two", "three")
    coordinator, receiver = Coordinator(client), client.receiver(queue, credit=2)
    transaction = coordinator.declare()
    got = receiver.take(2)
    for one in got:
        retire(one, transaction)
    other = client.receiver(queue)
    assert other.take_one().body == "three"
    coordinator.commit(transaction)
    client.until(lambda: all(one.delivery.settled for one in got), "the proxy settles")
    assert {one.delivery.remote_state for one in got} == {TRANSACTIONAL}
    receiver.close()
    other.take_nothing()


@pytest.mark.parametrize("is_settled", [False, True])
def test_retired_messages_come_back_in_order_when_it_is_rolled_back(
    client: ProtonClient, queue: str, is_settled: bool
) -> None:
    sent = [f"{number}" for number in range(6)]
    client.sender(queue).send(*sent)
    coordinator, receiver = Coordinator(client), client.receiver(queue, credit=4)
    transaction = coordinator.declare()
    for one in receiver.take(4):
        retire(one, transaction, is_settled=is_settled)
    coordinator.rollback(transaction)
    receiver.close()
    assert bodies(client.receiver(queue).take(6)) == sent


def test_settled_retirements_take_effect_with_the_commit(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("one", "two")
    coordinator, receiver = Coordinator(client), client.receiver(queue)
    transaction = coordinator.declare()
    for one in receiver.take(2):
        retire(one, transaction, is_settled=True)
    coordinator.commit(transaction)
    receiver.close()
    client.receiver(queue).take_nothing()


def test_other_outcomes_take_effect_with_the_commit_too(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    dead = f"{queue} dead"
    amqp.run(amqp.session.declare_queue(dead, set_name=SETS[0]))
    options = QueueOptions(dead_letter_exchange="", dead_letter_key=dead)
    amqp.run(amqp.session.declare_queue(queue, options, set_name=SETS[0]))
    client.sender(queue).send("rejected", "released", "accepted")
    coordinator, receiver = Coordinator(client), client.receiver(queue, credit=3)
    transaction = coordinator.declare()
    rejected, released, accepted = receiver.take(3)
    retire(rejected, transaction, Delivery.REJECTED)
    retire(released, transaction, Delivery.RELEASED)
    retire(accepted, transaction)
    graveyard, other = client.receiver(dead), client.receiver(queue)
    other.take_nothing()
    assert graveyard.has() == 0
    coordinator.commit(transaction)
    assert graveyard.take_one().body == "rejected"
    assert headers(other.take()) == [("released", 0)]
    other.take_nothing()


def test_discharge_and_the_next_declare_may_be_sent_together(client: ProtonClient, queue: str) -> None:
    coordinator, sender = Coordinator(client), client.sender(queue)
    transaction = coordinator.declare()
    for number in range(20):
        posted = [start_post(sender, transaction, f"{number}.{place}") for place in range(3)]
        discharge = coordinator.start_discharge(transaction, is_failed=number % 4 == 3)
        declare = coordinator.start_declare()
        transaction = coordinator.declared(declare)
        assert coordinator.sending.outcome(discharge) == Delivery.ACCEPTED
        assert all(delivery.settled for delivery in posted)
    expected = [f"{number}.{place}" for number in range(20) for place in range(3) if number % 4 != 3]
    assert bodies(client.receiver(queue).take(len(expected))) == expected


def test_descriptors_may_be_numbers(client: ProtonClient, queue: str) -> None:
    coordinator = Coordinator(client, is_symbolic=False)
    transaction = coordinator.declare()
    post(client.sender(queue), transaction, "one")
    coordinator.commit(transaction)
    assert client.receiver(queue).take_one().body == "one"


def test_transaction_that_is_none_is_refused_wherever_it_is_named(client: ProtonClient, queue: str) -> None:
    coordinator, sender, receiver = Coordinator(client), client.sender(queue), client.receiver(queue)
    assert coordinator.refusal(coordinator.start_discharge(b"nobody's")) == UNKNOWN
    finished = coordinator.declare()
    coordinator.commit(finished)
    assert coordinator.refusal(coordinator.start_discharge(finished)) == UNKNOWN
    delivery = start_post(sender, b"nobody's", "lost")
    assert sender.outcome(delivery) == Delivery.REJECTED
    assert delivery.remote.condition is not None and delivery.remote.condition.name == UNKNOWN
    sender.send("one")
    got = receiver.take_one()
    retire(got, b"nobody's")
    assert receiver.take_one().body == "one"


def test_failed_post_makes_the_commit_fail(amqp: AmqpCluster, queue: str) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name=SETS[0]))
    with ProtonClient(amqp.strict_port) as client:
        coordinator, relay, receiver = Coordinator(client), client.sender(None), client.receiver(queue)
        for address in (f"{queue} nowhere", None):
            transaction = coordinator.declare()
            post(relay, transaction, Message(body="one", address=queue))
            failed = start_post(relay, transaction, Message(body="two", address=address))
            assert refusal_of_post(relay, failed, transaction) == (
                INVALID_FIELD if address is None else NOT_FOUND
            )
            assert coordinator.refusal(coordinator.start_discharge(transaction)) == ROLLED_BACK
        receiver.take_nothing()


def test_post_that_a_full_queue_does_not_take_makes_the_commit_fail(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    amqp.run(amqp.session.declare_queue(queue, QueueOptions(length_max=1), set_name=SETS[0]))
    coordinator, sender = Coordinator(client), client.sender(queue)
    sender.send("first")
    transaction = coordinator.declare()
    refused = start_post(sender, transaction, "second")
    assert refusal_of_post(sender, refused, transaction) == RESOURCE_LIMIT
    discharge = coordinator.start_discharge(transaction)
    assert coordinator.refusal(discharge) == ROLLED_BACK
    assert "full" in str(discharge.remote.condition)
    receiver = client.receiver(queue)
    assert receiver.take_one().body == "first"
    receiver.take_nothing()


def test_protons_own_transaction_hears_of_a_refused_post_by_its_commit(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    amqp.run(amqp.session.declare_queue(queue, QueueOptions(length_max=1), set_name=SETS[0]))
    sender = client.sender(queue)
    sender.send("first")
    recorder = Recorder()
    client.connection.container.declare_transaction(client.conn, recorder, False)
    client.until(partial(recorder.has_heard, 1), "it is declared")
    assert recorder.transaction is not None
    posted = recorder.transaction.send(sender.link, Message(body="second"))
    client.until(lambda: bool(posted.settled), "the post is settled")
    assert posted.remote_state == TRANSACTIONAL
    recorder.transaction.commit()
    client.until(partial(recorder.has_heard, 2), "it is discharged")
    assert recorder.heard[1:] == ["commit failed"]
    assert "full" in recorder.reason


def test_lost_connection_rolls_back_its_transactions(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    sent = [f"{number}" for number in range(4)]
    client.sender(queue).send(*sent)
    lost = ProtonClient(amqp.port)
    coordinator, receiver = Coordinator(lost), lost.receiver(queue, credit=2)
    transaction = coordinator.declare()
    post(lost.sender(queue), transaction, "never")
    for one in receiver.take(2):
        retire(one, transaction)
    lost.pause(0.1)
    lost.lose()
    other = client.receiver(queue)
    assert headers(sorted(other.take(4), key=lambda one: str(one.body))) == [
        ("0", 1),
        ("1", 1),
        ("2", 0),
        ("3", 0),
    ]
    other.take_nothing()
    other.close()
    assert bodies(client.receiver(queue).take(4)) == sent


def test_transaction_spans_queues_of_two_resource_sets(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    sources = [name_in(place, f"{queue} from") for place in (0, 1)]
    targets = [name_in(place, f"{queue} to") for place in (0, 1)]
    for name in sources:
        client.sender(name).send("one", "two")
    assert {amqp.run(amqp.session.set_of_target("", name)) for name in sources} == set(SETS)
    coordinator = Coordinator(client)
    receivers = [client.receiver(name, credit=1) for name in sources]
    senders = [client.sender(name) for name in targets]
    results = [client.receiver(name) for name in targets]
    for is_committed in (False, True):
        transaction = coordinator.declare()
        for receiver, sender in zip(receivers, senders, strict=True):
            got = receiver.take_one()
            assert got.body == "one"
            retire(got, transaction)
            post(sender, transaction, f"moved {got.body}")
        results[0].take_nothing()
        if is_committed:
            coordinator.commit(transaction)
        else:
            coordinator.rollback(transaction)
        for receiver in receivers:
            receiver.link.flow(1)
    assert [bodies(result.take()) for result in results] == [["moved one"], ["moved one"]]
    assert [bodies(receiver.take()) for receiver in receivers] == [["two"], ["two"]]


def test_transactions_of_one_connection_do_not_touch_each_other(client: ProtonClient, queue: str) -> None:
    coordinator, sender = Coordinator(client), client.sender(queue)
    transactions = [coordinator.declare() for _ in range(10)]
    assert len(set(transactions)) == 10
    for turn in range(3):
        for number, transaction in enumerate(transactions):
            post(sender, transaction, f"{number}.{turn}")
    for number, transaction in reversed(list(enumerate(transactions))):
        if number % 2:
            coordinator.commit(transaction)
        else:
            coordinator.rollback(transaction)
    expected = [f"{number}.{turn}" for number in (9, 7, 5, 3, 1) for turn in range(3)]
    assert bodies(client.receiver(queue).take(15)) == expected


def test_transaction_spans_sessions(client: ProtonClient, queue: str) -> None:
    coordinator = Coordinator(client)
    transaction = coordinator.declare()
    links: list[Sender] = []
    for number in range(3):
        session = client.conn.session()
        session.open()
        link = session.sender(f"sender {number}")
        link.target.address = queue
        link.open()
        links.append(link)
    client.until(lambda: all(link.credit for link in links), "credit")
    deliveries = [sent(link, Message(body=f"{number}")) for number, link in enumerate(links)]
    for delivery in deliveries:
        delivery.local.data = [transaction]  # type: ignore[list-item]
        delivery.update(TRANSACTIONAL)
    client.until(lambda: all(delivery.settled for delivery in deliveries), "they are settled")
    coordinator.commit(transaction)
    assert bodies(client.receiver(queue).take(3)) == ["0", "1", "2"]


def test_transaction_that_stays_open_too_long_is_rolled_back(amqp: AmqpCluster, queue: str) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name=SETS[0]))
    with ProtonClient(amqp.strict_port) as client:
        coordinator = Coordinator(client)
        transaction = coordinator.declare()
        post(client.sender(queue), transaction, "late")
        client.pause(STRICT_TRANSACTION_SECONDS + 0.5)
        refusal = coordinator.refusal(coordinator.start_discharge(transaction))
        assert refusal == "amqp:transaction:timeout"
        client.receiver(queue).take_nothing()


def test_request_that_is_none_is_refused_and_the_next_one_is_taken(client: ProtonClient) -> None:
    coordinator = Coordinator(client)
    for body in ("text", {"map": 1}, [symbol("amqp:declare:list")], None):
        assert coordinator.sending.refusal(Message(body=body)) == "amqp:decode-error"
    coordinator.rollback(coordinator.declare())


def test_closed_coordinator_link_rolls_back_what_it_declared(client: ProtonClient, queue: str) -> None:
    sent = [f"{number}" for number in range(4)]
    sender = client.sender(queue)
    sender.send(*sent)
    coordinator, receiver = Coordinator(client), client.receiver(queue, credit=2)
    transaction = coordinator.declare()
    post(sender, transaction, "never")
    for one in receiver.take(2):
        retire(one, transaction, is_settled=True)
    coordinator.sending.close()
    receiver.close()
    other = client.receiver(queue)
    assert headers(sorted(other.take(4), key=lambda one: str(one.body))) == [
        ("0", 1),
        ("1", 1),
        ("2", 0),
        ("3", 0),
    ]
    other.take_nothing()
    other.close()
    assert bodies(client.receiver(queue).take(4)) == sent


def test_presettled_posts_are_part_of_the_transaction(client: ProtonClient, queue: str) -> None:
    coordinator, sender = Coordinator(client), client.sender(queue)
    for is_committed in (False, True):
        transaction = coordinator.declare()
        for number in range(5):
            start_post(sender, transaction, f"{is_committed} {number}").settle()
        if is_committed:
            coordinator.commit(transaction)
        else:
            coordinator.rollback(transaction)
    receiver = client.receiver(queue)
    assert bodies(receiver.take(5)) == [f"True {number}" for number in range(5)]
    receiver.take_nothing()


def test_large_messages_are_posted_and_retired_in_a_transaction(client: ProtonClient, queue: str) -> None:
    coordinator, sender, receiver = Coordinator(client), client.sender(queue), client.receiver(queue)
    transaction = coordinator.declare()
    large = bytes(range(256)) * 8_000
    post(sender, transaction, *(Message(body=large, inferred=True) for _ in range(3)))
    coordinator.commit(transaction)
    got = receiver.take(3)
    assert all(one.body == large for one in got)
    transaction = coordinator.declare()
    for one in got:
        retire(one, transaction)
    coordinator.commit(transaction)
    receiver.close()
    client.receiver(queue).take_nothing()


def test_what_a_transaction_posts_cannot_be_received_in_it(client: ProtonClient, queue: str) -> None:
    coordinator, sender, receiver = Coordinator(client), client.sender(queue), client.receiver(queue)
    transaction = coordinator.declare()
    post(sender, transaction, "one")
    receiver.take_nothing()
    sender.send("two")
    got = receiver.take_one()
    assert got.body == "two"
    retire(got, transaction)
    coordinator.commit(transaction)
    assert receiver.take_one().body == "one"


def test_hundreds_of_messages_move_in_one_transaction(client: ProtonClient, queue: str) -> None:
    sent = [f"{number}" for number in range(500)]
    client.sender(queue).send(*sent)
    coordinator, sender = Coordinator(client), client.sender(f"{queue} moved")
    receiver = client.receiver(queue, credit=500)
    transaction = coordinator.declare()
    posts = []
    for one in receiver.take(500):
        retire(one, transaction, is_settled=True)
        posts.append(start_post(sender, transaction, str(one.body)))
    coordinator.commit(transaction)
    assert {sender.outcome(delivery) for delivery in posts} == {TRANSACTIONAL}
    assert bodies(client.receiver(f"{queue} moved", credit=500).take(500)) == sent
    receiver.close()
    client.receiver(queue).take_nothing()
