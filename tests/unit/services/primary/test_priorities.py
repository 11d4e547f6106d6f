"""Priorities: consumers get what has a higher one first, and of one priority what came first.

(The rig looks at every delivery: nothing is handed out before what is free and comes first.)
"""

from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.commands import (
    BindCommand,
    CommitCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    PurgeQueueCommand,
    RollbackCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.inputs import LeaseExtended, Woken
from lockstep.core.records import Publish
from lockstep.core.requests import Browse, CloseConsumer, DrainConsumer, GrantCredit
from lockstep.core.server_messages import BrowseAnswer
from services.primary.core.settings import PrimarySettings
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import LEASE_MS, SET, Rig, RigClient

MIXED = ((b"a", 4), (b"b", 0), (b"c", 9), (b"d", 4), (b"e", 9), (b"f", 7), (b"g", 0))
IN_ORDER = [b"c", b"e", b"f", b"a", b"d", b"b", b"g"]


def publish_mixed(client: RigClient, queue: str = "q") -> None:
    for body, priority in MIXED:
        client.publish(queue, body, priority=priority)


def others_in(rig: Rig) -> int | None:
    """What the queue knows of: entries with another priority than the default one."""
    priorities = rig.state.queues.by_name["q"].priorities
    return len(list(priorities.items())) if priorities is not None else None


def test_higher_priorities_come_first_and_within_one_what_came_first(client: RigClient) -> None:
    publish_mixed(client)
    client.consume("q")
    assert client.bodies("q") == IN_ORDER
    assert [each.priority for each in client.in_hand.values()] == [9, 9, 7, 4, 4, 0, 0]


def test_messages_of_one_command_have_each_their_own(client: RigClient) -> None:
    messages = tuple(OutgoingMessage(b"", body, priority=priority) for body, priority in MIXED)
    client.ok(PublishCommand(0, "", "q", messages))
    client.consume("q")
    assert client.bodies("q") == IN_ORDER


def test_credit_goes_to_what_comes_first_at_that_moment(client: RigClient) -> None:
    publish_mixed(client)
    consumer = client.consume("q", credit=2)
    assert client.bodies("q") == [b"c", b"e"]
    client.publish("q", b"h", priority=8)
    client.say(GrantCredit(consumer, 2))
    assert client.bodies("q") == [b"c", b"e", b"h", b"f"]
    client.say(GrantCredit(consumer, 10))
    assert client.bodies("q")[4:] == [b"a", b"d", b"b", b"g"]


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_what_is_given_back_takes_its_old_place(client: RigClient, disposition: int) -> None:
    publish_mixed(client)
    consumer = client.consume("q", credit=4)
    c, _, f, a = client.positions("q")
    client.settle("q", a, f, c, disposition=disposition)
    client.say(GrantCredit(consumer, 10))
    assert client.bodies("q") == [b"e", b"c", b"f", b"a", b"d", b"b", b"g"]


def test_a_transaction_that_rolls_back_gives_messages_back_to_their_places(client: RigClient) -> None:
    publish_mixed(client)
    consumer = client.consume("q", credit=4)
    key = client.begin()
    client.settle("q", transaction=key, sequence=1)
    client.rollback(key)
    client.say(GrantCredit(consumer, 10))
    assert client.bodies("q") == IN_ORDER


def test_what_is_not_committed_is_neither_seen_nor_waited_for(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    urgent = (OutgoingMessage(b"", b"urgent", priority=9),)
    client.ok(PublishCommand(0, "", "q", urgent, key, 1))
    client.publish("q", b"1", b"2", b"3")
    consumer = client.consume("q", credit=1)
    assert client.bodies("q") == [b"1"]
    client.ok(CommitCommand(0, key, 1))
    client.say(GrantCredit(consumer, 2))
    assert client.bodies("q") == [b"1", b"urgent", b"2"]


def test_a_publish_that_is_not_durable_yet_holds_nobody_up(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    rig.holds_store = True
    client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"urgent", priority=9),)))
    consumer = client.consume("q", credit=1)
    assert client.bodies("q") == [b"1"]
    rig.acknowledge()
    client.say(GrantCredit(consumer, 2))
    assert client.bodies("q") == [b"1", b"urgent", b"2"]


def test_nothing_of_lower_priority_overtakes_what_is_coming_back(rig: Rig, client: RigClient) -> None:
    publish_mixed(client)
    other = rig.client()
    consumer = client.consume("q", credit=3)
    _, e, f = client.positions("q")
    key = client.begin()
    client.settle("q", e, f, transaction=key, sequence=1)
    rig.holds_store = True
    client.command(RollbackCommand(0, key))
    client.say(CloseConsumer(consumer))
    other.consume("q", credit=10)
    assert not other.bodies("q"), "a successor may not know that they are back"
    rig.acknowledge()
    assert other.bodies("q") == [b"e", b"f", b"a", b"d", b"b", b"g"]


def test_after_a_failover_and_a_restart_the_order_is_the_same(rig: Rig, client: RigClient) -> None:
    publish_mixed(client)
    for is_restarted in (False, True):
        rig = Rig(predecessor=rig, is_restarted=is_restarted)
        client = rig.client()
        client.consume("q")
        assert client.bodies("q") == IN_ORDER


def test_dead_letters_keep_their_priority(rig: Rig, client: RigClient) -> None:
    client.declare("dead")
    client.declare("fleeting", is_durable=False)
    client.exchange("x", "dead", "fleeting")
    client.declare("work", dead_letter_exchange="x")
    publish_mixed(client, "work")
    client.consume("work")
    client.settle("work", disposition=Disposition.REJECT)
    for queue in ("dead", "fleeting"):
        client.consume(queue)
        assert client.bodies(queue) == IN_ORDER


def test_selectors_and_exclusions_leave_the_order_as_it_is(rig: Rig, client: RigClient) -> None:
    for number in range(12):
        colour = kept_properties(colour="red" if number % 2 else "blue")
        client.publish("q", b"%d" % number, properties=colour, priority=number % 3)
    consumer = client.consume("q", selector="colour = 'red'", credit=3)
    assert client.bodies("q") == [b"5", b"11", b"1"]
    (first, *_) = client.positions("q")
    client.settle("q", first, disposition=Disposition.RELEASE, excluded_consumer=consumer)
    client.say(GrantCredit(consumer, 10), DrainConsumer(consumer))
    assert client.bodies("q") == [b"11", b"1", b"7", b"3", b"9"] and client.drained(consumer) == [7]
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"2", b"5", b"8", b"4", b"10", b"0", b"6"]


def test_browsers_see_the_order_of_the_queue(rig: Rig, client: RigClient) -> None:
    publish_mixed(client)
    client.browse("q")
    assert client.shown == [body for body, _ in MIXED]
    client.say(Browse(1, "q", QueuePosition(0), 100))
    (answer,) = client.heard_of(BrowseAnswer)
    assert [(each.body, each.priority) for each in answer.messages] == list(MIXED)


def test_a_drain_is_answered_when_all_priorities_are_through(client: RigClient) -> None:
    publish_mixed(client)
    consumer = client.consume("q", credit=10)
    client.say(DrainConsumer(consumer))
    assert client.drained(consumer) == [3]


def test_limits_count_all_alike_and_what_evicts_evicts_the_oldest(client: RigClient) -> None:
    client.declare("limited", length_max=2)
    client.declare("ring", length_max=2, is_evicting=True)
    for queue in ("limited", "ring"):
        client.publish(queue, b"1", priority=9)
        client.publish(queue, b"2", priority=0)
        refused = client.publish(queue, b"3", priority=9).code
        assert refused is (ErrorCode.QUEUE_FULL if queue == "limited" else ErrorCode.NONE)
        client.consume(queue)
    assert client.bodies("limited") == [b"1", b"2"] and client.bodies("ring") == [b"3", b"2"]


def test_what_expires_is_passed_by(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", priority=9, ttl_ms=100)
    client.publish("q", b"2", priority=8)
    client.publish("q", b"3")
    rig.pass_time(200)
    client.consume("q")
    assert client.bodies("q") == [b"2", b"3"]


def test_a_fanout_gives_each_queue_its_priorities(client: RigClient) -> None:
    client.declare("fleeting", is_durable=False)
    client.exchange("x", "q", "fleeting")
    client.ok(BindCommand(0, "x", "q", "again"))
    for body, priority in MIXED:
        client.publish("", body, exchange="x", priority=priority)
    for queue in ("q", "fleeting"):
        client.consume(queue)
        assert client.bodies(queue) == IN_ORDER


def test_a_queue_without_priorities_has_none(rig: Rig, client: RigClient) -> None:
    publish_mixed(client)
    assert others_in(rig) == 5
    client.ok(PurgeQueueCommand(0, "q"))
    assert others_in(rig) is None
    client.publish("q", b"1", b"2", b"3", b"4", b"5")
    assert others_in(rig) is None
    record = [record for record in rig.records() if isinstance(record, Publish)][-1]
    assert record.alike is not None
    client.consume("q")
    assert len(client.bodies("q")) == 5


def test_bodies_that_are_away_come_back_in_the_order_of_priorities(rig: Rig) -> None:
    rig = Rig(PrimarySettings(reading_messages_max=4, delivery_batch_max=3), resident_bytes_max=1)
    client = rig.client()
    client.declare("q")
    for number in range(40):
        client.publish("q", b"body %d" % number, priority=(4, 9, 0, 4)[number % 4])
    client.consume("q")
    expected = sorted(range(40), key=lambda number: (-(4, 9, 0, 4)[number % 4], number))
    assert client.bodies("q") == [b"body %d" % number for number in expected]
    assert [each.priority for each in client.in_hand.values()] == [9] * 10 + [4] * 20 + [0] * 10


def test_a_primary_looks_at_a_bounded_part_of_what_it_passes_by() -> None:
    """Many of a low priority stand in front of the first that is not: they are passed by some at a time, and only once."""
    rig = Rig(PrimarySettings(delivery_turn_max=64))
    client = rig.client()
    client.declare("q")
    low = tuple(OutgoingMessage(b"", b"low", priority=0) for _ in range(1000))
    client.ok(PublishCommand(0, "", "q", low))
    client.publish("q", b"1", b"2")
    consumer = client.consume("q", credit=1)
    assert not client.bodies("q")
    turns = 0
    while not client.bodies("q"):
        turns += 1
        rig.boottime_ms += 1
        rig.feed(Woken(SET))
    assert client.bodies("q") == [b"1"] and 10 < turns < 20
    client.say(GrantCredit(consumer, 1))
    assert client.bodies("q") == [b"1", b"2"], "what was passed by is not looked at again"


@pytest.mark.fuzz
@given(st.integers(0, 1 << 32), st.integers(1, 120))
def test_whatever_happens_what_is_free_and_comes_first_is_handed_out_first(seed: int, steps: int) -> None:
    random = Random(seed)
    settings = PrimarySettings(delivery_batch_max=3, delivery_turn_max=random.choice((4, 1000)))
    resident = random.choice((1, 1 << 40))
    rig = Rig(settings, resident_bytes_max=resident)
    rig.client().declare("q", delivery_count_max=3, dead_letter_exchange="", dead_letter_key="q")
    lives = count()
    clients = [rig.client(f"c{next(lives)}") for _ in range(2)]
    for _ in range(steps):
        client = random.choice(clients)
        choice = random.random()
        if choice < 0.4:
            priorities = random.choice(((4,), (9,), (0, 4, 7, 9)))
            messages = tuple(
                OutgoingMessage(
                    b"", random.randbytes(4), random.random() < 0.8, 0, (), random.choice(priorities)
                )
                for _ in range(random.choice((1, 1, 3, 6)))
            )
            client.command(PublishCommand(0, "", "q", messages))
        elif choice < 0.6:
            held = [position for name, position in client.in_hand if name == "q"]
            chosen = tuple(random.sample(held, random.randint(0, len(held))))
            if chosen and not rig.holds_store:
                client.settle("q", *chosen, disposition=random.randint(1, 4))
        elif choice < 0.7:
            client.consume("q", credit=random.randrange(6))
        elif choice < 0.8 and not rig.holds_store:
            key = client.begin()
            messages = (OutgoingMessage(b"", b"t", priority=random.randrange(10)),)
            client.command(PublishCommand(0, "", "q", messages, key, 1))
            client.commit(key, 1) if random.random() < 0.7 else client.rollback(key)
        elif choice < 0.9:
            rig.holds_store = not rig.holds_store
            if not rig.holds_store:
                rig.acknowledge()
        elif choice < 0.95:
            rig.boottime_ms += 1
            rig.feed(Woken(SET))
        else:
            rig.holds_store = False
            rig.acknowledge()
            rig = Rig(
                settings, predecessor=rig, is_restarted=random.random() < 0.5, resident_bytes_max=resident
            )
            clients = [rig.client(f"c{next(lives)}") for _ in range(2)]
    rig.holds_store = False
    rig.feed(LeaseExtended(SET, 1, LEASE_MS))
    rig.acknowledge()
    rig.check_log()
