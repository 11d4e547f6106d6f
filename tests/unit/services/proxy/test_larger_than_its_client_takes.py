"""Messages that are larger than a client takes on its link (AMQP 1.0, 2.7.3): it is not sent them, and they are for others."""

import pytest
from proton import Delivery

from lockstep.core.commands import Disposition
from lockstep.core.ids import Epoch, QueuePosition
from tests.unit.services.proxy.outgoing_rig import EPOCH, Rig

LARGE, SMALL = b"x" * 200, b"x"


async def test_a_message_that_is_too_large_goes_back_and_the_consumer_does_not_get_it_again() -> None:
    rig = Rig(message_bytes_max=100)
    rig.deliver_messages(EPOCH, (1, SMALL), (2, LARGE), (3, SMALL), (4, LARGE))
    assert len(rig.received) == 2
    assert rig.broker.settled == [((QueuePosition(2), QueuePosition(4)), Disposition.RELEASE)]
    assert rig.broker.excluded == [1]
    for delivery in rig.received:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    rig.exchange()
    assert rig.broker.settled[1:] == [((QueuePosition(1), QueuePosition(3)), Disposition.ACCEPT)]


async def test_messages_that_are_too_large_take_no_credit_from_those_behind_them() -> None:
    rig = Rig(message_bytes_max=100, credit=2)
    rig.deliver_messages(EPOCH, (1, LARGE), (2, LARGE), (3, LARGE), (4, SMALL), (5, SMALL), (6, SMALL))
    assert len(rig.received) == 2
    assert [positions for positions, _ in rig.broker.settled] == [(1, 2, 3)]
    rig.deliver_messages(Epoch(2), (7, LARGE))
    assert len(rig.received) == 2


@pytest.mark.parametrize(("most", "count"), [(0, 1), (220, 1), (100, 0)])
async def test_what_is_measured_is_the_whole_message(most: int, count: int) -> None:
    rig = Rig(message_bytes_max=most)
    rig.deliver_messages(EPOCH, (1, LARGE))
    assert len(rig.received) == count


async def test_a_browser_is_not_shown_what_is_too_large_and_takes_nothing() -> None:
    rig = Rig(message_bytes_max=100, is_browser=True)
    rig.deliver_messages(EPOCH, (1, LARGE), (2, SMALL))
    assert len(rig.received) == 1
    assert rig.broker.settled == []
