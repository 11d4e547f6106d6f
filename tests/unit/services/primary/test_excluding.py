"""What goes back and is not offered again to who gave it back (AMQP modified, undeliverable-here)."""

import pytest

from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.requests import CloseConsumer, DrainConsumer, GrantCredit
from services.primary.core.choosing_view import ChoosingView
from services.primary.core.hands import Hands
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import Rig, RigClient, is_ascending


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_who_is_excluded_gets_everything_else(rig: Rig, client: RigClient, disposition: int) -> None:
    client.publish("q", b"1", b"2", b"3")
    consumer = client.consume("q", credit=2)
    first = client.positions("q")[0]
    client.settle("q", first, disposition=disposition, excluded_consumer=consumer)
    client.say(GrantCredit(consumer, 10))
    client.publish("q", b"4")
    assert client.bodies("q") == [b"2", b"3", b"4"]
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"1"]
    rig.check_log()


def test_the_others_of_a_session_are_not_excluded(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    consumer = client.consume("q")
    second = client.consume("q")
    client.settle("q", disposition=Disposition.RELEASE, excluded_consumer=consumer)
    assert client.bodies("q") == [b"1"]
    client.settle("q", disposition=Disposition.RELEASE, excluded_consumer=second)
    assert not client.in_hand


def test_exclusion_is_forgotten_with_the_consumer(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    consumer = client.consume("q")
    client.settle("q", disposition=Disposition.RELEASE, excluded_consumer=consumer)
    client.say(CloseConsumer(consumer))
    client.consume("q")
    assert client.bodies("q") == [b"1"]
    client.resume()
    client.settle("q", disposition=Disposition.RELEASE, excluded_consumer=77)
    client.consume("q")
    assert client.bodies("q") == [b"1"]


def test_what_others_give_back_still_reaches_an_excluded_consumer(rig: Rig, client: RigClient) -> None:
    other = rig.client()
    client.publish("q", b"1", b"2", b"3", b"4")
    consumer = client.consume("q", credit=1)
    other.consume("q", credit=2)
    client.settle("q", disposition=Disposition.RELEASE, excluded_consumer=consumer)
    other.say(CloseConsumer(1))
    other.settle("q", disposition=Disposition.FAIL)
    client.say(GrantCredit(consumer, 10))
    assert client.bodies("q") == [b"2", b"3", b"4"] and is_ascending(client.positions("q"))
    other.consume("q")
    assert other.bodies("q") == [b"1"]


def test_a_selecting_consumer_can_be_excluded_too(rig: Rig, client: RigClient) -> None:
    for body in (b"r1", b"r2"):
        client.publish("q", body, properties=kept_properties(colour="red"))
    consumer = client.consume("q", selector="colour = 'red'", credit=1)
    client.settle("q", disposition=Disposition.FAIL, excluded_consumer=consumer)
    client.say(GrantCredit(consumer, 5), DrainConsumer(consumer))
    assert client.bodies("q") == [b"r2"] and client.drained(consumer) == [4]


def test_exclusions_of_messages_that_left_are_forgotten(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    queue = rig.state.queues.by_name["q"]
    (there,) = queue.positions()
    view = ChoosingView(Hands(queue), None)
    for position in range(1, 1000):
        view.exclude((there, QueuePosition(there + position)))
    assert there in view.excluded and len(view.excluded) < 150


def test_only_what_goes_back_excludes(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    consumer = client.consume("q")
    for disposition in (Disposition.ACCEPT, Disposition.REJECT):
        answered = client.settle("q", disposition=disposition, excluded_consumer=consumer)
        assert answered.code is ErrorCode.INVALID_ARGUMENT
    assert client.settle("q").code is ErrorCode.NONE
