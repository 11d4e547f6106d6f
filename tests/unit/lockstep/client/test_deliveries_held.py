"""What of a session's deliveries is void, or named by a resumption: very many, and those of several epochs and consumers."""

import pytest

from lockstep.client.deliveries_held import Consumer, DeliveriesHeld
from lockstep.client.session_events import DeliveriesVoided
from lockstep.core.commands import Disposition, SettleCommand
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from lockstep.core.requests import HeldDeliveries
from lockstep.core.server_messages import DeliveredMessage, Deliveries
from tests.counted_work import CountedOpcodes


def deliver(held: DeliveriesHeld, consumer: int, queue: str, *positions: int) -> None:
    messages = tuple(
        DeliveredMessage(QueuePosition(position), b"", b"", 0, 0, True) for position in positions
    )
    assert held.deliver(Deliveries(held.epoch, LogIndex(1), consumer, queue, messages))


def settle(queue: str, epoch: int, *positions: int) -> SettleCommand:
    return SettleCommand(1, queue, Epoch(epoch), tuple(map(QueuePosition, positions)), Disposition.ACCEPT)


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
    assert held.void(Epoch(2)) == [
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
    assert held.void(Epoch(1)) == [
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
            HeldDeliveries("q", Epoch(1), (QueuePosition(1), QueuePosition(2), QueuePosition(3))),
            HeldDeliveries("r", Epoch(1), (QueuePosition(8),)),
        )
    assert held.by_queue() == {"q": {1, 3}}


def test_very_many_of_one_consumer_are_not_looked_at_one_by_one(held: DeliveriesHeld) -> None:
    """Hundreds of thousands are told void, and named, in one step."""

    def work(count: int) -> int:
        deliver(held, 1, "q", *range(1, count + 1))
        with CountedOpcodes() as counted:
            assert len(held.in_hand(())[0].positions) == count
            (voided,) = held.void(Epoch(1))
        assert isinstance(voided, DeliveriesVoided) and len(voided.positions) == count
        return counted.total

    assert work(10_000) == work(10)
