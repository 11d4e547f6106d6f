"""Draining a consumer: it gets what it can, and hears then that it has no credit any more."""

from lockstep.core.commands import Disposition, SettleCommand
from lockstep.core.inputs import ClientStreamDrained, ClientStreamFull
from lockstep.core.requests import CloseConsumer, DrainConsumer, GrantCredit
from lockstep.core.server_messages import ConsumerDrained, Deliveries
from services.primary.core.dispatch import RETURNED_IN_ONE
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish


def test_a_drain_is_answered_behind_what_could_be_delivered(client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    consumer = client.consume("q", credit=0)
    client.say(GrantCredit(consumer, 5), DrainConsumer(consumer))
    assert [type(message) for message in client.heard[-2:]] == [Deliveries, ConsumerDrained]
    assert client.bodies("q") == [b"1", b"2"] and client.drained(consumer) == [3]


def test_a_drained_consumer_has_no_credit(client: RigClient) -> None:
    consumer = client.consume("q", credit=5)
    client.say(DrainConsumer(consumer))
    client.publish("q", b"1")
    assert not client.in_hand and client.drained(consumer) == [5]
    client.say(GrantCredit(consumer, 1))
    assert client.bodies("q") == [b"1"]


def test_a_drain_without_credit_is_answered_at_once(client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    consumer = client.consume("q", credit=1)
    client.say(DrainConsumer(consumer), DrainConsumer(consumer))
    assert client.drained(consumer) == [0, 0]


def test_only_who_is_drained_loses_credit(rig: Rig, client: RigClient) -> None:
    consumer, other = client.consume("q"), rig.client()
    other.consume("q")
    client.say(DrainConsumer(consumer))
    client.publish("q", b"1", b"2")
    assert not client.in_hand and other.bodies("q") == [b"1", b"2"]


def test_a_drain_waits_for_what_was_said_before_it(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    consumer = client.consume("q", credit=3)
    rig.holds_store = True
    held = client.positions("q")
    client.in_hand.clear()
    client.command(SettleCommand(0, "q", rig.core.epoch, held, Disposition.FAIL))
    client.command(publish("q", b"2"))
    client.say(DrainConsumer(consumer))
    assert not client.drained(consumer)
    rig.acknowledge()
    assert client.bodies("q") == [b"1", b"2"] and client.drained(consumer) == [0]


def test_a_drain_waits_for_bodies_that_are_away() -> None:
    rig = Rig(PrimarySettings(reading_messages_max=4, delivery_batch_max=3), resident_bytes_max=1)
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b"body %d" % number for number in range(10)])
    rig.holds_readings = True
    consumer = client.consume("q", credit=20)
    client.say(DrainConsumer(consumer))
    assert len(client.in_hand) == 1 and not client.drained(consumer)
    while rig.readings:
        rig.read()
    assert len(client.in_hand) == 10 and client.drained(consumer) == [10]


def test_a_drain_goes_on_over_several_turns() -> None:
    rig = Rig(PrimarySettings(delivery_batch_max=2, delivery_turn_max=4))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b""] * 10)
    rig.pass_time(50)
    consumer = client.consume("q", credit=0)
    client.say(GrantCredit(consumer, 20), DrainConsumer(consumer))
    assert not client.drained(consumer)
    for _ in range(4):
        rig.pass_time(50)
    assert len(client.in_hand) == 10 and client.drained(consumer) == [10]


def test_a_drain_waits_until_its_stream_can_take_more(rig: Rig, client: RigClient) -> None:
    consumer = client.consume("q", credit=5)
    client.publish("q", b"1")
    rig.feed(ClientStreamFull(SET, client.stream))
    client.publish("q", b"2")
    client.say(DrainConsumer(consumer))
    assert not client.drained(consumer)
    rig.feed(ClientStreamDrained(SET, client.stream))
    assert client.bodies("q") == [b"1", b"2"] and client.drained(consumer) == [3]


def test_a_browser_is_drained_behind_what_waits_to_be_shown(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    rig.holds_store = True
    client.command(publish("q", b"3"))
    consumer = client.browse("q", credit=10)
    client.say(DrainConsumer(consumer))
    assert not client.shown and not client.drained(consumer)
    rig.acknowledge()
    assert client.shown == [b"1", b"2", b"3"] and client.drained(consumer) == [7]


def test_nobody_hears_of_the_drain_of_a_consumer_that_is_closed(rig: Rig, client: RigClient) -> None:
    consumer = client.consume("q", credit=5)
    rig.holds_store = True
    client.command(publish("q", b"1"))
    client.say(DrainConsumer(consumer), CloseConsumer(consumer), DrainConsumer(99))
    rig.acknowledge()
    assert not client.heard_of(ConsumerDrained) and not client.in_hand


def test_a_drain_waits_for_all_that_came_back_before_it_however_much_that_is_of_other_queues() -> None:
    """It is committed, and may not go out yet: that is done some at a time."""
    rig = Rig()
    gone, other = rig.client(), rig.client()
    for name, messages in (("first", 8 * RETURNED_IN_ONE), ("second", 3)):
        gone.declare(name)
        gone.publish(name, *[b"x"] * messages)
        gone.consume(name, credit=messages)
        while len(gone.positions(name)) < messages:
            rig.pass_time(1)
    consumer = other.consume("second", credit=5)
    rig.holds_store = True
    for name in ("first", "second"):
        positions = gone.positions(name)
        for begin in range(0, len(positions), RETURNED_IN_ONE):
            some = positions[begin : begin + RETURNED_IN_ONE]
            gone.command(SettleCommand(0, name, rig.core.epoch, some, Disposition.FAIL))
    other.say(DrainConsumer(consumer))
    rig.acknowledge()
    assert not other.drained(consumer)
    for _ in range(8):
        rig.pass_time(1)
    assert other.bodies("second") == [b"x"] * 3 and other.drained(consumer) == [2]
