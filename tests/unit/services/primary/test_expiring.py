"""Expiry: it keeps up with whoever publishes, in steps between which others have their turn, and what it is late for goes to
nobody.
"""

import pytest

from lockstep.core.commands import Disposition
from lockstep.core.ids import QueuePosition, place
from lockstep.core.inputs import AnyInput, Tick, Woken
from lockstep.core.queues import Queue
from lockstep.core.records import DeleteQueue, Message
from lockstep.core.requests import DetachSession, DrainConsumer
from services.primary.core.expiry import QUEUES_LOOKED_AT, Expiry
from services.primary.core.settings import PrimarySettings
from tests.unit.lockstep.core.history import Log
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

ONE_AT_A_TIME = PrimarySettings(expiry_batch_max=1)


def _handle(rig: Rig, given: AnyInput) -> list[int]:
    """When the primary wants to be woken."""
    rig.wakes.clear()
    rig.feed(given)
    return rig.wakes


def _pass(rig: Rig, milliseconds: int) -> None:
    """Time passes, and no tick comes yet."""
    rig.boottime_ms += milliseconds
    rig.wall_ms += milliseconds


def _late(settings: PrimarySettings = ONE_AT_A_TIME) -> tuple[Rig, RigClient]:
    """Three messages that are past their end and there, and two others among them."""
    rig = Rig(settings)
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2", ttl_ms=100)
    client.publish("q", b"a")
    client.publish("q", b"3", ttl_ms=100)
    client.publish("q", b"b", ttl_ms=10_000)
    _pass(rig, 100)
    return rig, client


def test_expiry_goes_on_between_ticks_while_something_is_due() -> None:
    rig, _ = _late(PrimarySettings(expiry_batch_max=2))
    assert _handle(rig, Tick(SET)) == [rig.boottime_ms + 1]
    assert rig.bodies("q") == [b"a", b"3", b"b"]
    _pass(rig, 1)
    assert _handle(rig, Woken(SET)) == []
    assert rig.bodies("q") == [b"a", b"b"]
    rig.check_log()


@pytest.mark.parametrize("how", ["held", "locked"])
def test_what_somebody_has_is_looked_at_once_and_not_again_before_it_is_let_go(how: str) -> None:
    rig = Rig(ONE_AT_A_TIME)
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2", b"3", ttl_ms=100)
    client.consume("q", credit=3)
    transaction = client.begin()
    if how == "locked":
        client.settle("q", transaction=transaction, sequence=1)
    client.publish("q", b"4", ttl_ms=200)
    _pass(rig, 200)
    looks = 0
    while _handle(rig, Tick(SET)):
        looks += 1
        _pass(rig, 1)
    assert looks == 3, "with the fourth nothing is due any more"
    _pass(rig, 5000)
    assert not rig.core.context.expiry.is_due(rig.wall_ms)
    if how == "locked":
        client.rollback(transaction)
    else:
        client.settle("q", disposition=Disposition.RELEASE)
    for _ in range(4):
        rig.pass_time(1)
    assert rig.bodies("q") == []
    rig.check_log()


@pytest.mark.parametrize(
    "end", ["it is released", "it failed", "its session detaches", "its session is lost"]
)
def test_what_is_let_go_is_watched_again_however_it_is(end: str) -> None:
    rig = Rig()
    client = rig.client(timeout_ms=1000)
    client.declare("q")
    client.publish("q", b"1", ttl_ms=100)
    client.consume("q")
    rig.pass_time(200)
    assert rig.bodies("q") == [b"1"]
    match end:
        case "it is released":
            client.settle("q", disposition=Disposition.RELEASE)
        case "it failed":
            client.settle("q", disposition=Disposition.FAIL)
        case "its session detaches":
            client.say(DetachSession())
        case "its session is lost":
            client.lose_stream()
            rig.pass_time(1000)
        case _:
            raise AssertionError(end)
    rig.pass_time(1)
    assert rig.bodies("q") == []
    rig.check_log()


@pytest.mark.parametrize("selector", ["", "TRUE"])
def test_what_has_expired_goes_to_nobody_though_it_is_there(selector: str) -> None:
    rig, client = _late()
    client.consume("q", selector=selector)
    assert client.bodies("q") == [b"a", b"b"]
    assert len(rig.bodies("q")) == 5
    while _handle(rig, Tick(SET)):
        _pass(rig, 1)
    assert rig.bodies("q") == [b"a", b"b"]
    rig.check_log()


def test_a_browser_is_shown_what_is_there() -> None:
    _, client = _late()
    client.browse("q")
    assert client.shown == [b"1", b"2", b"a", b"3", b"b"]


def test_a_drain_passes_what_has_expired() -> None:
    _, client = _late()
    consumer = client.consume("q", credit=10)
    client.say(DrainConsumer(consumer))
    assert client.bodies("q") == [b"a", b"b"] and client.drained(consumer) == [8]


def test_what_left_its_time_behind_with_its_queue_is_delivered() -> None:
    """A dead letter's end is that of the queue that it went to, whatever its content says."""
    rig = Rig(ONE_AT_A_TIME)
    client = rig.client()
    client.declare("dead")
    client.declare("short", message_ttl_ms=300)
    client.exchange("x", "dead", "short")
    client.declare("q", dead_letter_exchange="x")
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    client.publish("dead", b"2", b"3", ttl_ms=100)
    _pass(rig, 299)
    client.consume("short")
    client.consume("dead")
    assert client.bodies("short") == client.bodies("dead") == [b"1"]


def test_passing_by_many_that_have_expired_leaves_others_their_turn() -> None:
    rig = Rig(PrimarySettings(expiry_batch_max=1, delivery_turn_max=10, delivery_batch_max=5))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b"late"] * 25, ttl_ms=100)
    client.publish("q", b"1")
    _pass(rig, 100)
    client.say()
    client.consume("q")
    turns = 1
    while not client.bodies("q"):
        client.say()
        turns += 1
    assert turns == 3 and client.bodies("q") == [b"1"]


def test_a_new_primary_looks_for_what_expires_in_pieces_and_delivers_none_of_it_meanwhile() -> None:
    before = Rig(ONE_AT_A_TIME)
    old = before.client()
    old.declare("q")
    for number in range(30):
        old.publish("q", b"%d" % number, ttl_ms=100 if number % 2 else 0)
    _pass(before, 200)
    rig = Rig(PrimarySettings(piece_cost=1, expiry_batch_max=2), predecessor=before)
    rig.wall_ms = before.wall_ms
    looking = [rig.core.context.expiry.is_looking]
    client = rig.client()
    client.consume("q")
    kept = [b"%d" % number for number in range(0, 30, 2)]
    assert client.bodies("q") == kept
    for _ in range(200):
        _pass(rig, 1)
        rig.feed(Woken(SET))
    looking.append(rig.core.context.expiry.is_looking)
    assert looking == [True, False]
    assert rig.bodies("q") == kept
    rig.check_log()


def watching(queue_messages: int) -> tuple[Log, Queue, Expiry]:
    """A queue, and an expiry that watches so many messages of it."""
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    expiry = Expiry(log.state)
    for _ in expiry.look_through():
        pass
    expiry.expect([queue.id])
    for number in range(queue_messages):
        watch_one(log, queue, expiry, number)
    return log, queue, expiry


def watch_one(log: Log, queue: Queue, expiry: Expiry, number: int) -> QueuePosition:
    (given,) = (Message((queue.id,), b"", b"", 1000 + number, True),)
    position = QueuePosition(place(log.publish(given), 0))
    expiry.watch(queue, [position])
    return position


def test_messages_that_left_before_their_time_are_forgotten_a_few_at_a_time() -> None:
    count = 3000
    log, queue, expiry = watching(count)
    log.dequeue(queue, *queue.positions())
    last, moved = 0, []
    for number in range(2 * count):
        log.dequeue(queue, watch_one(log, queue, expiry, number))
        moved.append(abs(len(expiry._unsure) - last))
        last = len(expiry._unsure)
    begun = [count for count in moved if count > 2]
    assert len(begun) <= 2, "looking begins once in a while, and then goes on by two at a time"
    assert len(expiry._due) + len(expiry._unsure) < 3 * count


def test_what_is_being_looked_at_expires_in_its_turn() -> None:
    count = 3000
    log, queue, expiry = watching(count)
    while not expiry._unsure:
        watch_one(log, queue, expiry, count)
    watch_one(log, queue, expiry, 0)
    assert expiry._unsure and expiry._due
    found: list[QueuePosition] = []
    while expiry.is_due(10_000):
        found += expiry.take_due(10_000, 100).get(queue.id, [])
    assert sorted(found) == queue.positions()
    expiries = [queue.expires_ms(position) for position in found]
    assert expiries == sorted(expiries)


def test_a_message_that_is_given_back_again_and_again_is_watched_once() -> None:
    _, queue, expiry = watching(1)
    for _ in range(100):
        expiry.watch_again(queue, queue.positions())
    assert len(expiry._due) == 1
    assert expiry.take_due(2000, 10) == {queue.id: queue.positions()}
    assert not expiry.is_due(5000), "somebody has it"
    expiry.watch_again(queue, queue.positions())
    assert expiry.take_due(2000, 10) == {queue.id: queue.positions()}


def test_queues_are_looked_through_some_at_a_time_when_an_epoch_begins() -> None:
    log = Log()
    log.begin_epoch()
    queues = [log.queue(f"q{number}") for number in range(3 * QUEUES_LOOKED_AT)]
    position = QueuePosition(place(log.publish(Message((queues[-1].id,), b"", b"", 1000, True)), 0))
    expiry = Expiry(log.state)
    costs = []
    work = expiry.look_through()
    for cost in work:
        costs.append(cost)
        if len(costs) == 1:
            # It goes while it is being looked for.
            log.append(DeleteQueue(None, queues[-2].id))
    assert max(costs) <= QUEUES_LOOKED_AT // 4 and sum(costs) >= 3 * QUEUES_LOOKED_AT // 4
    assert expiry.take_due(1000, 10) == {queues[-1].id: [position]}
