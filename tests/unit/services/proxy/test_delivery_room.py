"""What waits for clients that do not take it: so much of a connection and of a worker, whatever links have asked for."""

import time

import pytest

from lockstep.core.commands import Disposition
from lockstep.core.ids import Epoch
from services.proxy.delivery_room import DeliveryRoom
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits
from services.proxy.worker_room import WorkerRoom
from tests.unit.services.proxy.outgoing_rig import EPOCH, Rig

KIB = 1024
BODY = b"x" * 200
LENGTH = len(BODY) + 9 + MESSAGE_BYTES
"""With what `properties` hold, and what each message counts."""


def over(room: DeliveryRoom) -> bool:
    """As it is now."""
    return room.is_over


def test_a_connection_holds_no_more_than_it_leaves_but_one_message_always() -> None:
    worker = WorkerRoom(100)
    first, second, third = (DeliveryRoom(worker, 80) for _ in range(3))
    first.take(50)
    assert first.is_full and not first.is_over
    first.take(1)
    assert over(first)
    first.give_back(1)
    second.take(25)
    assert second.is_full and not second.is_over
    third.take(40)
    assert third.is_over and worker.left == -15, "it held nothing, and was given one message"
    assert not DeliveryRoom(worker, 80).is_full, "whoever holds nothing may ask"
    first.give_back(50)
    assert worker.left == 35
    assert not second.is_over


def test_a_connection_has_a_limit_of_its_own() -> None:
    room = DeliveryRoom(WorkerRoom(1 << 30), 100)
    room.take(100)
    assert room.is_full and not room.is_over
    room.take(1)
    assert over(room)


def rig(bytes_max: int, *, is_browser: bool = False) -> Rig:
    found = Rig(deliveries=DeliveryRoom(WorkerRoom(1 << 30), bytes_max), is_browser=is_browser, credit=100)
    assert found.link is not None
    found.link.flow()
    return found


def deliver(rig: Rig, *positions: int, epoch: Epoch = EPOCH) -> None:
    rig.deliver_messages(epoch, *[(one, BODY) for one in positions])


async def test_what_a_client_takes_needs_no_room() -> None:
    served = rig(1)
    for position in range(1, 21):
        deliver(served, position)
    assert len(served.received) == 20 and served.deliveries.held == 0 and served.broker.settled == []


async def test_what_there_is_no_room_for_goes_back_and_nothing_overtakes_it() -> None:
    served = rig(3 * LENGTH)
    served.is_read = False
    deliver(served, 1, 2)
    deliver(served, 3, 4, 5)
    assert served.deliveries.held <= 3 * LENGTH
    assert served.broker.settled == [((4, 5), Disposition.RELEASE)] and served.broker.drains == 1
    deliver(served, 6)
    assert served.broker.settled[1:] == [((6,), Disposition.RELEASE)], "it was on its way behind them"
    served.is_read = True
    assert served.link is not None
    served.link.resume()
    served.exchange()
    assert len(served.received) == 3 and served.deliveries.held == 0
    deliver(served, 7)
    assert served.broker.settled[2:] == [((7,), Disposition.RELEASE)], (
        "before the broker has said that all is there"
    )
    granted = served.broker.granted
    served.link.drained()
    assert served.broker.granted > granted
    deliver(served, 4, 5, 6, 7)
    assert len(served.received) == 7


async def test_one_message_is_kept_however_large_it_is() -> None:
    served = rig(LENGTH // 2)
    served.is_read = False
    deliver(served, 1)
    assert served.broker.settled == [] and served.deliveries.held >= LENGTH
    deliver(served, 2)
    assert served.broker.settled == [((2,), Disposition.RELEASE)]


async def test_nothing_more_is_asked_for_where_a_connection_is_full() -> None:
    served = rig(LENGTH)
    granted = served.broker.granted
    served.is_read = False
    deliver(served, 1, 2)
    assert served.link is not None
    served.link.drained()
    assert served.broker.granted == granted
    served.is_read = True
    served.link.resume()
    assert served.broker.granted > granted


async def test_a_browser_goes_on_behind_what_it_has_and_shows_nothing_twice() -> None:
    served = rig(3 * LENGTH, is_browser=True)
    deliver(served, 1)
    served.is_read = False
    deliver(served, 2, 3, 4, 5, 6)
    assert served.broker.begun_after == [None, 4] and served.broker.settled == []
    served.is_read = True
    assert served.link is not None
    served.link.resume()
    served.exchange()
    assert len(served.received) == 4 and served.deliveries.held == 0 and served.broker.granted > 0
    deliver(served, 5, 6)
    assert len(served.received) == 6


async def test_a_browser_that_has_nothing_waiting_goes_on_behind_what_was_sent() -> None:
    worker = WorkerRoom(1 << 30)
    served = Rig(deliveries=DeliveryRoom(worker, 10 * LENGTH), is_browser=True, credit=100)
    deliver(served, 1, 2)
    other = DeliveryRoom(worker, 1 << 30)
    served.is_read = False
    served.deliveries.take(20 * LENGTH)
    other.take(1)
    deliver(served, 3, 4)
    assert served.broker.begun_after == [None, 2]


@pytest.mark.parametrize("is_browser", [False, True])
async def test_what_a_client_does_not_take_in_time_takes_no_room_from_others(is_browser: bool) -> None:
    """A browser's copies are shown again when it reads."""
    worker = WorkerRoom(10 * LENGTH)
    stalled = Rig(deliveries=DeliveryRoom(worker, 10 * LENGTH), is_browser=is_browser, credit=100)
    stalled.is_read = False
    deliver(stalled, 1, 2, 3, 4, 5)
    assert stalled.link is not None
    stalled.link.give_back_late(time.monotonic() + 1_000_000)
    assert worker.left == 10 * LENGTH


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_browser", [False, True])
async def test_the_room_is_free_when_a_link_is_gone(is_lost: bool, is_browser: bool) -> None:
    served = rig(10 * LENGTH, is_browser=is_browser)
    served.is_read = False
    deliver(served, 1, 2, 3)
    assert served.deliveries.held > 0 and served.link is not None
    served.link.end(is_lost=is_lost)
    assert served.deliveries.held == 0


async def test_the_room_is_free_when_what_waits_is_void() -> None:
    served = rig(10 * LENGTH)
    served.is_read = False
    deliver(served, 1, 2, 3)
    assert served.link is not None
    served.void(1, 2, 3)
    assert served.deliveries.held == 0


def test_a_worker_has_room_for_some_connections_at_their_limit() -> None:
    limits = ProxyLimits()
    assert limits.deliveries_bytes_max >= 16 * limits.waiting_bytes_max
    assert limits.waiting_bytes_max >= 2 * limits.delivery_bytes_max


async def test_messages_sent_in_one_go_take_no_more_than_there_is_room_for_however_small_they_are() -> None:
    served = Rig(credit=5_000)
    assert served.link is not None
    room = served.room(served.link)
    served.deliver_messages(EPOCH, *[(one, b"x") for one in range(1, 5_001)])
    assert room // LENGTH < len(served.received) <= room // MESSAGE_BYTES
