"""Deliveries: order, credit, who holds what, and what becomes of it."""

import pytest

from lockstep.core.commands import (
    DeleteQueueCommand,
    Disposition,
    PurgeQueueCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.requests import (
    Browse,
    CloseConsumer,
    DetachSession,
    GrantCredit,
    OpenConsumer,
)
from lockstep.core.server_messages import (
    BrowseAnswer,
    ConsumerClosed,
    ConsumerOpened,
    Deliveries,
)
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, is_ascending, publish


def test_a_message_goes_out_when_it_is_committed_and_not_before(rig: Rig, client: RigClient) -> None:
    client.consume("q")
    rig.holds_store = True
    client.command(publish("q", b"1"))
    assert not client.in_hand
    rig.acknowledge()
    assert client.bodies("q") == [b"1"]


def test_a_consumer_that_opens_between_append_and_commit_gets_the_message(
    rig: Rig, client: RigClient
) -> None:
    rig.holds_store = True
    client.command(publish("q", b"1"))
    client.consume("q")
    assert not client.in_hand
    rig.acknowledge()
    assert client.bodies("q") == [b"1"]


def test_no_more_goes_out_than_credit_was_granted(rig: Rig, client: RigClient) -> None:
    client.publish("q", *[b"%d" % number for number in range(10)])
    consumer = client.consume("q", credit=3)
    assert client.bodies("q") == [b"0", b"1", b"2"]
    client.settle("q")
    assert not client.in_hand
    client.say(GrantCredit(consumer, 2), GrantCredit(consumer, -5))
    assert client.bodies("q") == [b"3", b"4"]


def test_credit_beyond_the_limit_is_cut() -> None:
    rig = Rig(PrimarySettings(consumer_credit_max=5))
    client = rig.client()
    client.declare("q")
    consumer = client.consume("q", credit=100)
    client.say(GrantCredit(consumer, 100))
    client.publish("q", *[b""] * 10)
    assert len(client.in_hand) == 5


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_what_comes_back_takes_its_old_place(rig: Rig, client: RigClient, disposition: int) -> None:
    client.publish("q", b"1", b"2", b"3", b"4")
    client.consume("q", credit=3)
    third, first = client.positions("q")[2], client.positions("q")[0]
    client.settle("q", third, first, disposition=disposition)
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"1", b"3", b"4"]
    counts = [delivered.delivery_count for delivered in other.in_hand.values()]
    assert counts == ([0, 0, 0] if disposition == Disposition.RELEASE else [1, 1, 0])
    assert is_ascending(other.positions("q"))
    rig.check_log()


def test_what_failed_goes_out_again_only_when_its_count_is_committed(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    rig.holds_store = True
    held = client.positions("q")
    client.in_hand.clear()
    client.command(settle_failed(held))
    assert not client.in_hand
    rig.acknowledge()
    assert [delivered.delivery_count for delivered in client.in_hand.values()] == [1]


@pytest.mark.parametrize("selector", ["", "TRUE"])
def test_nothing_overtakes_what_is_coming_back(rig: Rig, client: RigClient, selector: str) -> None:
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=2)
    first, second = client.positions("q")
    other = rig.client()
    rig.holds_store = True
    client.command(settle_failed((first,)))
    client.command(SettleCommand(0, "q", Epoch(1), (second,), Disposition.RELEASE))
    other.consume("q", selector=selector)
    assert not other.in_hand
    rig.acknowledge()
    assert other.bodies("q") == [b"1", b"2", b"3"]


def settle_failed(positions: tuple[QueuePosition, ...]) -> SettleCommand:
    return SettleCommand(0, "q", Epoch(1), positions, Disposition.FAIL)


def test_consumers_share_a_queue_in_turns() -> None:
    rig = Rig(PrimarySettings(delivery_batch_max=2))
    first, second = rig.client(), rig.client()
    first.declare("q")
    first.consume("q")
    second.consume("q")
    first.publish("q", *[b"%d" % number for number in range(6)])
    shares = sorted([first.bodies("q"), second.bodies("q")], key=len)
    assert shares == [[b"2", b"3"], [b"0", b"1", b"4", b"5"]]


def test_much_is_delivered_in_turns_with_other_work() -> None:
    rig = Rig(PrimarySettings(delivery_batch_max=2, delivery_turn_max=3))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b""] * 10)
    rig.pass_time(50)  # the epoch's first tick looks at the directory, whose answer is a turn of its own
    client.consume("q")
    counts = [len(client.in_hand)]
    for _ in range(3):
        rig.pass_time(50)
        counts.append(len(client.in_hand))
    assert counts == [4, 8, 10, 10]


def test_a_delivery_is_cut_behind_its_bytes() -> None:
    rig = Rig(PrimarySettings(delivery_bytes_max=100))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[bytes(60)] * 5)
    client.consume("q")
    assert [len(message.messages) for message in client.heard_of(Deliveries)] == [2, 2, 1]


def test_an_exclusive_consumer_is_alone(rig: Rig, client: RigClient) -> None:
    other = rig.client()
    client.consume("q", is_exclusive=True)
    other.consume("q")
    assert other.heard_of(ConsumerClosed)[0].code is ErrorCode.LOCKED
    client.say(CloseConsumer(1))
    other.consume("q")
    client.consume("q", is_exclusive=True)
    assert client.heard_of(ConsumerClosed)[0].code is ErrorCode.LOCKED
    assert [opened.consumer for opened in other.heard_of(ConsumerOpened)] == [2]


def test_what_a_closed_consumer_delivered_stays_held_until_it_is_settled(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    consumer = client.consume("q", credit=1)
    client.say(CloseConsumer(consumer))
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"2"]
    assert client.settle("q").code is ErrorCode.NONE
    assert rig.bodies("q") == [b"2"]


def test_only_the_holder_settles_and_only_in_the_epoch_of_the_delivery(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    position = client.positions("q")[0]
    other = rig.client()
    stale = other.settle("q", position)
    assert stale.code is ErrorCode.STALE_DELIVERY and "'q'" in stale.message
    rig = other.rig = client.rig = Rig(predecessor=rig)
    client.stream = 0
    client.resume()
    assert client.settle("q", position).code is ErrorCode.STALE_DELIVERY
    other.stream = 0
    other.resume()
    other.consume("q")
    assert other.bodies("q") == [b"1"]


def test_one_stale_position_settles_none(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    client.consume("q", credit=1)
    held = client.positions("q")[0]
    assert client.settle("q", held, QueuePosition(held + 1)).code is ErrorCode.STALE_DELIVERY
    assert rig.bodies("q") == [b"1", b"2"]
    assert client.settle("q", held).code is ErrorCode.NONE


def test_settling_twice_is_stale(client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    position = client.positions("q")[0]
    assert client.settle("q", position).value == 1
    assert client.settle("q", position).code is ErrorCode.STALE_DELIVERY


def test_a_deleted_queue_closes_its_consumers_and_what_they_hold_is_stale(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1")
    other = rig.client()
    other.consume("q")
    client.ok(DeleteQueueCommand(0, "q"))
    (closed,) = other.heard_of(ConsumerClosed)
    assert closed.code is ErrorCode.NOT_FOUND and "'q'" in closed.message
    client.declare("q")
    assert other.settle("q").code is ErrorCode.STALE_DELIVERY
    other.say(DetachSession())
    rig.check_log()


def test_a_purge_leaves_what_somebody_holds(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=1)
    assert client.ok(PurgeQueueCommand(0, "q")) == 2
    assert rig.bodies("q") == [b"1"]
    rig.check_log()


def test_conditional_deletions_are_refused_while_the_queue_is_in_use(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    assert client.do(DeleteQueueCommand(0, "q", if_empty=True)).code is ErrorCode.IN_USE
    client.consume("q")
    assert client.do(DeleteQueueCommand(0, "q", if_unused=True)).code is ErrorCode.IN_USE
    assert client.ok(DeleteQueueCommand(0, "q")) == 1


def test_a_browse_takes_nothing_and_goes_on_where_it_ended() -> None:
    rig = Rig(PrimarySettings(browse_bytes_max=25))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[bytes(10)] * 5)
    after, seen = QueuePosition(0), 0
    for request in range(1, 4):
        client.say(Browse(request, "q", after, 100))
        answer = client.heard_of(BrowseAnswer)[-1]
        after, seen = answer.messages[-1].position, seen + len(answer.messages)
        assert answer.is_end == (request == 3)
    assert seen == 5
    client.consume("q")
    assert len(client.in_hand) == 5


def test_the_number_of_consumers_is_limited() -> None:
    rig = Rig(PrimarySettings(stream_consumers_max=2))
    client = rig.client()
    client.declare("q")
    client.say(*[OpenConsumer(number, "q", 1) for number in range(3)])
    assert [closed.consumer for closed in client.heard_of(ConsumerClosed)] == [2]


def test_messages_that_left_without_a_consumer_leave_nothing_behind(rig: Rig, client: RigClient) -> None:
    client.declare("ring", length_max=10, is_evicting=True)
    client.publish("ring", b"first")
    client.consume("ring", credit=1)
    for _ in range(300):
        client.settle("ring", disposition=Disposition.RELEASE)
        client.publish("ring", *[b""] * 10)
    client.say(CloseConsumer(1))
    client.consume("ring")
    assert len(client.in_hand) == 10
    rig.check_log()


def test_a_delivery_says_when_its_message_expires(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", ttl_ms=100)
    client.publish("q", b"2")
    client.consume("q")
    assert [each.expires_ms for each in client.in_hand.values()] == [rig.wall_ms + 100, 0]
