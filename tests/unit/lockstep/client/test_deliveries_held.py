"""What of a session's deliveries is void, or named by a resumption: very many, and those of several epochs and consumers."""

import pytest

from lockstep.client.deliveries_held import Consumer, DeliveriesHeld
from lockstep.client.session_events import AllVoided, DeliveriesVoided, Effect
from lockstep.client.void_deliveries import told_apart
from lockstep.core.commands import Disposition, SettleCommand
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from lockstep.core.pieces import at_once
from lockstep.core.requests import HeldDeliveries, UnansweredSettle
from lockstep.core.server_messages import DeliveredMessage, Deliveries
from tests.counted_work import CountedOpcodes


def message(position: int) -> DeliveredMessage:
    return DeliveredMessage(QueuePosition(position), b"", b"", 0, 0, True)


def deliver(held: DeliveriesHeld, consumer: int, queue: str, *positions: int) -> None:
    messages = tuple(map(message, positions))
    assert held.deliver(Deliveries(held.epoch, LogIndex(1), consumer, queue, messages))


def settle(queue: str, epoch: int, *positions: int) -> SettleCommand:
    return SettleCommand(1, queue, Epoch(epoch), tuple(map(QueuePosition, positions)), Disposition.ACCEPT)


def told(effects: list[Effect]) -> list[DeliveriesVoided]:
    """What consumers hear of these."""
    apart = []
    for effect in effects:
        assert isinstance(effect, AllVoided)
        apart += at_once(told_apart(effect))
    return apart


@pytest.fixture
def held() -> DeliveriesHeld:
    made = DeliveriesHeld()
    made.enter(Epoch(1), Epoch(1))
    made.consumers.update(
        {1: Consumer("q", 10, False), 2: Consumer("q", 10, False), 3: Consumer("r", 10, False)}
    )
    return made


def test_what_is_void_is_told_by_queue_consumer_and_epoch_and_gives_credit(held: DeliveriesHeld) -> None:
    deliver(held, 3, "r", 5, 4)
    deliver(held, 1, "q", 7, 1)
    held.enter(Epoch(2), Epoch(1))
    deliver(held, 2, "q", 3)
    deliver(held, 1, "q", 2)
    assert told(held.void(Epoch(2))) == [
        DeliveriesVoided(1, "q", Epoch(1), (QueuePosition(1), QueuePosition(7))),
        DeliveriesVoided(1, "q", Epoch(2), (QueuePosition(2),)),
        DeliveriesVoided(2, "q", Epoch(2), (QueuePosition(3),)),
        DeliveriesVoided(3, "r", Epoch(1), (QueuePosition(4), QueuePosition(5))),
    ]
    assert [consumer.credit for consumer in held.consumers.values()] == [10, 10, 10]
    assert held.void(Epoch(2)) == []


def test_several_consumers_of_one_epoch_are_told_apart(held: DeliveriesHeld) -> None:
    deliver(held, 2, "q", 9, 3)
    deliver(held, 1, "q", 5)
    deliver(held, 2, "q", 4)
    assert told(held.void(Epoch(1))) == [
        DeliveriesVoided(1, "q", Epoch(1), (QueuePosition(5),)),
        DeliveriesVoided(2, "q", Epoch(1), (QueuePosition(3), QueuePosition(4), QueuePosition(9))),
    ]


def test_a_resumption_names_what_is_held_and_what_settles_without_an_answer_name(
    held: DeliveriesHeld,
) -> None:
    deliver(held, 1, "q", 3, 1, 2)
    unsettled = settle("q", 1, 2), settle("r", 1, 8)
    held.settle(unsettled[0])
    for _ in range(2):
        assert held.in_hand(unsettled) == (
            HeldDeliveries("q", Epoch(1), (QueuePosition(2), QueuePosition(3), QueuePosition(1))),
            HeldDeliveries("r", Epoch(1), (QueuePosition(8),)),
        )
    assert held.by_queue() == {"q": {1, 3}}


class Hashed(int):
    """A position that counts how often it enters a set, or is looked up."""

    hashes = 0

    def __hash__(self) -> int:
        Hashed.hashes += 1
        return super().__hash__()


class Walked(dict[QueuePosition, int]):
    """No set takes hashes from it that it has kept."""


def test_what_is_held_enters_no_set_to_be_named_whatever_settles_are_not_answered(
    held: DeliveriesHeld,
) -> None:
    """Each of thousands would take as long as the resumption itself."""
    deliver(held, 1, "q", *map(Hashed, [1, 2, 3]))
    held._held["q"] = Walked(held._held["q"])
    unsettled = [settle("q", 1, position) for position in range(4, 100)]
    Hashed.hashes = 0
    (in_hand,) = held.in_hand(unsettled)
    assert Hashed.hashes == 0
    assert sorted(in_hand.positions) == list(range(1, 100))


def deliver_many(held: DeliveriesHeld, count: int) -> None:
    """To two consumers by turns."""
    for consumer in 1, 2:
        deliver(held, consumer, "q", *range(consumer, count + 1, 2))


def test_very_many_are_void_and_named_without_a_look_at_each(held: DeliveriesHeld) -> None:
    """Hundreds of thousands, in one step; who had which is found out in pieces."""

    def work(count: int) -> int:
        deliver_many(held, count)
        with CountedOpcodes() as counted:
            assert len(held.in_hand(())[0].positions) == count
            effects = held.void(Epoch(1))
        assert [consumer.credit for consumer in held.consumers.values()][:2] == [count // 2] * 2
        for consumer in held.consumers.values():
            consumer.credit = 0
        assert [len(voided.positions) for voided in told(effects)] == [count // 2] * 2
        return counted.total

    assert work(10_000) == work(10)


def test_very_many_are_handed_over_without_a_look_at_each(held: DeliveriesHeld) -> None:
    def work(count: int) -> int:
        deliver_many(held, count)
        with CountedOpcodes() as counted:
            assert held.enter(Epoch(held.epoch + 1), Epoch(1)) == []
            assert len(held.in_hand(())[0].positions) == count
        assert held.by_queue() == {"q": set(range(1, count + 1))}
        held.settle(settle("q", held.epoch - 1, *range(1, count + 1)))
        assert held.by_queue() == {}
        return counted.total

    assert work(10_000) == work(10)


def test_what_is_said_again_of_an_earlier_epoch_is_held_once(held: DeliveriesHeld) -> None:
    deliver(held, 1, "q", 1, 2)
    held.enter(Epoch(2), Epoch(1))
    unsettled = settle("q", 1, 1), settle("q", 1, 2)
    held.settle(unsettled[0])
    deliver(held, 1, "q", 3)
    assert held.by_queue() == {"q": {2, 3}}
    assert held.settling(unsettled) == (UnansweredSettle(1, "q", (QueuePosition(1),)),)
    for _ in range(2):
        held.take_back(unsettled[0])
    (in_hand,) = held.in_hand(unsettled)
    assert (in_hand.epoch, sorted(in_hand.positions)) == (Epoch(2), [1, 2, 3])
    messages = [message(2), message(3)]
    assert held.of_consumer(1, "q", Epoch(1), messages) == (QueuePosition(2),)
    assert held.of_consumer(1, "q", Epoch(2), messages) == (QueuePosition(3),)


def test_what_outlives_an_epoch_is_known_by_its_own_until_it_is_settled(held: DeliveriesHeld) -> None:
    deliver(held, 1, "q", 1, 2)
    held.enter(Epoch(2), Epoch(1))
    deliver(held, 1, "q", 3)
    held.enter(Epoch(3), Epoch(1))
    held.settle(settle("q", 1, 1))
    held.settle(settle("q", 2, 3))
    held.take_back(settle("q", 2, 3))
    assert told(held.void(Epoch(4))) == [
        DeliveriesVoided(0, "q", Epoch(2), (QueuePosition(3),)),
        DeliveriesVoided(1, "q", Epoch(1), (QueuePosition(2),)),
    ]
    held.settle(settle("q", 4, 9))
    assert held.void(Epoch(4)) == []


def test_what_is_void_is_not_taken_back(held: DeliveriesHeld) -> None:
    deliver(held, 1, "q", 1)
    held.settle(settle("q", 1, 1))
    assert held.enter(Epoch(2), Epoch(2)) == []
    held.take_back(settle("q", 1, 1))
    assert held.in_hand(()) == () == held.settling(())


def test_what_was_delivered_again_is_not_taken_back_beside_that(held: DeliveriesHeld) -> None:
    """A resumption that names one twice has no form."""
    deliver(held, 1, "q", 1, 2)
    held.enter(Epoch(2), Epoch(1))
    unsettled = settle("q", 1, 1, 2)
    held.settle(unsettled)
    deliver(held, 2, "q", 1)
    held.take_back(unsettled)
    (in_hand,) = held.in_hand((unsettled,))
    assert sorted(in_hand.positions) == [1, 2]
    assert held.of_consumer(2, "q", Epoch(2), [message(1)]) == (QueuePosition(1),), (
        "it is still its consumer's"
    )


def test_a_resumption_names_queues_and_what_is_not_answered_in_order(held: DeliveriesHeld) -> None:
    names = [f"queue {number}" for number in range(20)]
    unsettled = [settle(name, 1, 16, 8, 1) for name in reversed(names)]
    in_hand = held.in_hand(unsettled)
    assert [one.queue for one in in_hand] == sorted(names)
    assert {one.positions for one in in_hand} == {(1, 8, 16)}


def test_what_comes_behind_a_hand_over_that_followed_a_failover_is_of_the_last_epoch(
    held: DeliveriesHeld,
) -> None:
    """The client was away for both."""
    deliver(held, 1, "q", 1)
    assert [voided.epoch for voided in told(held.enter(Epoch(3), Epoch(2)))] == [1]
    deliver(held, 1, "q", 2)
    assert held.of_consumer(1, "q", Epoch(3), [message(2)]) == (QueuePosition(2),)
    assert [one.epoch for one in held.in_hand(())] == [3]


def test_nothing_is_void_where_nothing_was_held_when_an_epoch_ended(held: DeliveriesHeld) -> None:
    held.enter(Epoch(2), Epoch(1))
    assert held.void(Epoch(3)) == []
