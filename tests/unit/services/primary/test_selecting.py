"""Consumers with selectors: they get what matches, in order, and leave the rest to others."""

import pytest

from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.requests import CloseConsumer, DrainConsumer, GrantCredit
from lockstep.core.server_messages import ConsumerClosed
from services.primary.core.settings import PrimarySettings
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import Rig, RigClient, is_ascending

RED, BLUE = "colour = 'red'", "colour = 'blue'"


def paint(client: RigClient, *bodies: bytes, queue: str = "q") -> None:
    """Publish each in the colour that its first letter says."""
    for body in bodies:
        colour = {b"r": "red", b"b": "blue"}[body[:1]]
        client.publish(queue, body, properties=kept_properties(colour=colour))


def test_a_selecting_consumer_gets_what_matches_and_others_the_rest(rig: Rig, client: RigClient) -> None:
    paint(client, b"r1", b"b1", b"r2", b"b2")
    client.consume("q", selector=RED)
    assert client.bodies("q") == [b"r1", b"r2"]
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"b1", b"b2"], "what is held ahead of it is stepped over"
    paint(client, b"b3", b"r3")
    assert sorted([*client.bodies("q"), *other.bodies("q")]) == [b"b1", b"b2", b"b3", b"r1", b"r2", b"r3"]
    rig.check_log()


def test_consumers_with_different_selectors_do_not_stand_in_each_others_way(
    rig: Rig, client: RigClient
) -> None:
    other = rig.client()
    client.consume("q", selector=RED, credit=1)
    other.consume("q", selector=BLUE)
    paint(client, b"r1", b"r2", b"b1", b"r3", b"b2")
    assert client.bodies("q") == [b"r1"] and other.bodies("q") == [b"b1", b"b2"]
    client.say(GrantCredit(1, 9))
    assert client.bodies("q") == [b"r1", b"r2", b"r3"]


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_what_comes_back_is_offered_again_by_every_view_that_may(
    rig: Rig, client: RigClient, disposition: int
) -> None:
    other, plain = rig.client(), rig.client()
    other.consume("q", selector=RED, credit=0)
    paint(client, b"b1", b"r1", b"b2", b"r2")
    client.consume("q", selector=RED)
    other.say(GrantCredit(1, 1))
    client.say(CloseConsumer(1))
    client.settle("q", disposition=disposition)
    assert other.bodies("q") == [b"r1"]
    other.say(CloseConsumer(1))
    other.settle("q", disposition=disposition)
    plain.consume("q")
    assert plain.bodies("q") == [b"b1", b"r1", b"b2", b"r2"] and is_ascending(plain.positions("q"))


def test_what_a_plain_consumer_gives_back_reaches_a_selecting_one_that_passed_it(
    rig: Rig, client: RigClient
) -> None:
    client.consume("q")
    other = rig.client()
    other.consume("q", selector=RED)
    paint(client, b"r1", b"b1")
    mine, others = client.positions("q"), other.positions("q")
    assert len(mine) + len(others) == 2
    client.say(CloseConsumer(1))
    client.settle("q", disposition=Disposition.RELEASE)
    assert other.bodies("q") == [b"r1"]


def test_a_selecting_consumer_does_not_get_what_a_transaction_has_locked(rig: Rig, client: RigClient) -> None:
    paint(client, b"r1", b"r2")
    client.consume("q", credit=1)
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    other = rig.client()
    other.consume("q", selector=RED)
    assert other.bodies("q") == [b"r2"]
    client.say(CloseConsumer(1))
    client.rollback(transaction)
    assert other.bodies("q") == [b"r2", b"r1"]


def test_a_selector_sees_how_often_a_delivery_failed(rig: Rig, client: RigClient) -> None:
    paint(client, b"r1")
    client.consume("q", selector="JMSXDeliveryCount > 1")
    assert not client.in_hand
    other = rig.client()
    other.consume("q", credit=1)
    other.settle("q", disposition=Disposition.FAIL)
    assert client.bodies("q") == [b"r1"]


def test_what_is_not_of_amqp_or_malformed_matches_nothing(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"opaque", properties=b"some=thing")
    client.publish("q", b"cut", properties=kept_properties(colour="red")[:-2])
    paint(client, b"r1")
    client.consume("q", selector=RED)
    assert client.bodies("q") == [b"r1"]


def test_what_is_no_selector_closes_the_consumer(client: RigClient) -> None:
    client.consume("q", selector="colour = ")
    client.consume("q", selector="x = 1 OR " * 2000 + "x = 1")
    assert [closed.code for closed in client.heard_of(ConsumerClosed)] == [ErrorCode.INVALID_ARGUMENT] * 2


def test_a_browser_with_a_selector_is_shown_what_matches(client: RigClient) -> None:
    paint(client, b"r1", b"b1", b"r2")
    client.browse("q", selector=RED, credit=2)
    client.browse("q", selector=BLUE)
    paint(client, b"b2")
    assert sorted(client.shown) == [b"b1", b"b2", b"r1", b"r2"]


def test_a_drain_of_a_selecting_consumer_is_answered_when_all_was_looked_at() -> None:
    rig = Rig(PrimarySettings(delivery_turn_max=8))
    client = rig.client()
    client.declare("q")
    paint(client, *[b"b"] * 20, b"r1", *[b"b"] * 5)
    rig.pass_time(50)
    consumer = client.consume("q", selector=RED, credit=0)
    client.say(GrantCredit(consumer, 5), DrainConsumer(consumer))
    turns = 0
    while not client.drained(consumer):
        rig.pass_time(50)
        turns += 1
    assert client.bodies("q") == [b"r1"] and client.drained(consumer) == [4] and turns > 5


def test_a_view_that_matches_nothing_does_not_starve_others() -> None:
    rig = Rig(PrimarySettings(delivery_turn_max=8, delivery_batch_max=2))
    client = rig.client()
    client.declare("q")
    client.declare("r")
    paint(client, *[b"b"] * 50)
    client.publish("r", b"1", b"2", b"3")
    rig.pass_time(50)
    client.consume("q", selector=RED)
    client.consume("q", selector="colour = 'green'")
    client.consume("q", credit=6)
    client.consume("r")
    for _ in range(8):
        rig.pass_time(50)
    assert len(client.bodies("q")) == 6 and client.bodies("r") == [b"1", b"2", b"3"]


def test_bodies_that_are_away_are_looked_at_in_their_turn() -> None:
    rig = Rig(PrimarySettings(reading_messages_max=4, delivery_batch_max=3), resident_bytes_max=1)
    client, other, plain = rig.client(), rig.client(), rig.client()
    client.declare("q")
    bodies = [b"%s%d" % (letter, number) for number in range(10) for letter in (b"r", b"b")]
    paint(client, *bodies)
    rig.holds_readings = True
    client.consume("q", selector=RED)
    other.consume("q", selector=BLUE)
    while rig.readings:
        rig.read()
    plain.consume("q")
    while rig.readings:
        rig.read()
    assert client.bodies("q") == bodies[::2] and other.bodies("q") == bodies[1::2] and not plain.in_hand


def test_a_closed_consumer_waits_for_no_bodies() -> None:
    rig = Rig(PrimarySettings(reading_messages_max=4), resident_bytes_max=1)
    client = rig.client()
    client.declare("q")
    paint(client, *[b"b"] * 10)
    rig.holds_readings = True
    consumer = client.consume("q", selector=RED)
    client.say(CloseConsumer(consumer))
    rig.read()
    assert not rig.readings and not client.in_hand
