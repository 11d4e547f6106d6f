"""Browsing consumers: what they are shown, when, and that they take nothing."""

from lockstep.core.commands import Disposition, PurgeQueueCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import ClientStreamDrained, ClientStreamFull
from lockstep.core.requests import CloseConsumer, GrantCredit, OpenConsumer
from lockstep.core.server_messages import ConsumerClosed, Deliveries
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish


def test_a_browser_is_shown_copies_in_order_and_then_what_arrives(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    client.browse("q")
    client.publish("q", b"3")
    assert client.shown == [b"1", b"2", b"3"] and not client.in_hand
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"1", b"2", b"3"]
    rig.check_log()


def test_a_browser_is_shown_no_more_than_its_credit(client: RigClient) -> None:
    client.publish("q", b"1", b"2", b"3")
    consumer = client.browse("q", credit=1)
    assert client.shown == [b"1"]
    client.say(GrantCredit(consumer, 1))
    assert client.shown == [b"1", b"2"]


def test_a_browser_sees_what_somebody_holds_or_a_transaction_has_locked(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=2)
    transaction = client.begin()
    client.settle("q", client.positions("q")[0], transaction=transaction, sequence=1)
    other = rig.client()
    other.browse("q")
    assert other.shown == [b"1", b"2", b"3"], "as `Browse` shows it: it is in the queue until the commit"
    client.commit(transaction, 1)
    other.browse("q")
    assert other.shown == [b"1", b"2", b"3", b"2", b"3"]


def test_what_comes_back_is_not_shown_again(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    client.consume("q")
    other = rig.client()
    other.browse("q")
    client.settle("q", disposition=Disposition.FAIL)
    client.publish("q", b"3")
    assert other.shown == [b"1", b"2", b"3"]


def test_a_browser_is_shown_nothing_before_it_is_committed(rig: Rig, client: RigClient) -> None:
    client.browse("q")
    rig.holds_store = True
    client.command(publish("q", b"1"))
    assert not client.shown
    rig.acknowledge()
    assert client.shown == [b"1"]


def test_a_removal_that_is_not_committed_is_shown_only_with_its_commit(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    rig.holds_store = True
    client.command(PurgeQueueCommand(0, "q"))
    client.command(publish("q", b"3"))
    client.browse("q")
    assert not client.shown, "a state that lacks the purged ones is not committed"
    rig.acknowledge()
    assert client.shown == [b"3"]


def test_a_browser_reads_one_batch_ahead_of_the_commit(rig: Rig) -> None:
    rig = Rig(PrimarySettings(delivery_batch_max=2))
    client = rig.client()
    client.declare("q")
    client.declare("other")
    client.publish("q", *[b"%d" % number for number in range(5)])
    rig.holds_store = True
    client.command(publish("other", b""))
    client.browse("q")
    assert not client.shown
    rig.acknowledge(1)
    assert client.shown == [b"0", b"1", b"2", b"3", b"4"]
    assert [len(message.messages) for message in client.heard_of(Deliveries)] == [2, 2, 1]


def test_a_browser_goes_on_behind_the_position_it_names_on_another_primary(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1", b"2", b"3")
    client.browse("q", credit=2)
    after = client.heard_of(Deliveries)[-1].messages[-1].position
    client.rig = Rig(predecessor=rig)
    client.stream = 0
    client.resume()
    client.browse("q", after=after)
    client.publish("q", b"4")
    assert client.shown == [b"1", b"2", b"3", b"4"]


def test_bodies_that_are_away_are_shown_in_their_turn() -> None:
    rig = Rig(PrimarySettings(reading_messages_max=4, delivery_batch_max=3), resident_bytes_max=1)
    client = rig.client()
    client.declare("q")
    bodies = [b"body %d" % number for number in range(20)]
    client.publish("q", *bodies)
    client.browse("q")
    other = rig.client()
    other.browse("q", credit=10)
    other.consume("q")
    assert client.shown == bodies and other.shown == bodies[:10] and other.bodies("q") == bodies


def test_a_browser_counts_as_no_consumer(rig: Rig, client: RigClient) -> None:
    client.declare("auto", is_auto_delete=True)
    client.publish("auto", b"1")
    browser = client.browse("auto")
    client.say(CloseConsumer(browser))
    other = rig.client()
    other.browse("auto")
    other.lose_stream()
    assert rig.state.queues.get("auto") is not None, "no consumer has left"
    client.consume("auto", is_exclusive=True)
    client.browse("auto")
    assert not client.heard_of(ConsumerClosed) and client.shown == [b"1", b"1"]


def test_a_browser_cannot_be_exclusive(client: RigClient) -> None:
    client.say(OpenConsumer(1, "q", 1, is_exclusive=True, is_browser=True))
    assert client.heard_of(ConsumerClosed)[0].code is ErrorCode.INVALID_ARGUMENT


def test_a_browser_of_a_full_stream_is_shown_nothing_until_it_is_read(rig: Rig, client: RigClient) -> None:
    client.browse("q")
    rig.feed(ClientStreamFull(SET, client.stream))
    client.publish("q", b"1")
    assert not client.shown
    rig.feed(ClientStreamDrained(SET, client.stream))
    assert client.shown == [b"1"]
