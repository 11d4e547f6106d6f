"""Time to live, failed deliveries and dead letters: what leaves a queue by itself, and where it goes."""

import pytest

from lockstep.core.commands import DeclareQueueCommand, Disposition, QueueOptions
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex
from lockstep.core.invariants import check_invariants
from lockstep.core.records import DeclareQueue, Dequeue, Move
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, publish


def test_a_message_expires_by_its_own_time_or_its_queues_whichever_is_shorter() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", message_ttl_ms=1000)
    client.publish("q", b"as the queue says")
    client.publish("q", b"shorter", ttl_ms=500)
    client.publish("q", b"longer", ttl_ms=5000)
    rig.pass_time(499)
    assert len(rig.bodies("q")) == 3
    rig.pass_time(1)
    assert rig.bodies("q") == [b"as the queue says", b"longer"]
    rig.pass_time(500)
    assert rig.bodies("q") == []
    rig.check_log()


def test_one_queues_time_to_live_is_not_another_queues() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("short", message_ttl_ms=100)
    client.declare("unlimited")
    client.exchange("x", "short", "unlimited")
    assert client.publish("", b"1", b"2", exchange="x").value == 4
    rig.pass_time(100)
    assert rig.bodies("short") == []
    assert rig.bodies("unlimited") == [b"1", b"2"]
    rig.check_log()


def test_a_message_that_somebody_holds_expires_when_it_is_let_go() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1", ttl_ms=100)
    client.consume("q")
    rig.pass_time(200)
    assert rig.bodies("q") == [b"1"]
    client.say()
    client.lose_stream()
    rig.pass_time(10_000)
    rig.pass_time(1)
    assert rig.bodies("q") == []
    rig.check_log()


def test_an_expired_message_stays_where_it_was_dead_lettered_to() -> None:
    """What brought it there is over: it would be gone from there at once."""
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", b"1", ttl_ms=100)
    for _ in range(5):
        rig.pass_time(100)
    assert rig.bodies("q") == [] and rig.bodies("dead") == [b"1"]
    client.consume("dead")
    assert [delivered.expires_ms for delivered in client.in_hand.values()] == [0]
    rig.check_log()


def test_an_expired_message_stays_dead_lettered_after_a_failover() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    rig = Rig(predecessor=rig, is_restarted=True)
    rig.pass_time(100)
    assert rig.bodies("dead") == [b"1"]


def test_a_moved_message_waits_as_long_as_its_new_queue_says_and_goes_on() -> None:
    """The delayed retry: a failed message waits in a queue with a time to live, which dead-letters it back."""
    rig = Rig()
    client = rig.client()
    client.declare("work", dead_letter_exchange="", dead_letter_key="wait")
    client.declare("wait", message_ttl_ms=1000, dead_letter_exchange="", dead_letter_key="work")
    client.publish("work", b"1")
    client.consume("work", credit=1)
    client.settle("work", disposition=Disposition.REJECT)
    assert rig.bodies("wait") == [b"1"]
    rig.pass_time(999)
    assert rig.bodies("wait") == [b"1"]
    rig.pass_time(1)
    assert rig.bodies("work") == [b"1"] and rig.bodies("wait") == []
    rig.check_log()


def test_a_state_from_a_snapshot_knows_when_moved_messages_expire() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", message_ttl_ms=1000)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    rig.check_log()
    copy = SetState.from_items(SET, rig.state.items())
    assert state_hash(copy) == state_hash(rig.state)
    (position,) = copy.queues.by_name["dead"].positions()
    assert copy.queues.by_name["dead"].expires_ms(position) == rig.wall_ms + 1000


def test_a_cycle_of_times_to_live_moves_a_message_once_per_time_to_live() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("a", message_ttl_ms=100, dead_letter_exchange="", dead_letter_key="b")
    client.declare("b", message_ttl_ms=100, dead_letter_exchange="", dead_letter_key="a")
    client.publish("a", b"1")
    before = rig.core.log_end
    for _ in range(10):
        rig.pass_time(50)
    assert rig.core.log_end - before == 5
    assert rig.bodies("a") + rig.bodies("b") == [b"1"]
    rig.check_log()


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("is_durable_queue", [True, False])
def test_what_is_rejected_goes_to_the_end_of_a_queue_that_is_its_own_dead_letter_target(
    is_durable: bool, is_durable_queue: bool
) -> None:
    rig = Rig()
    client = rig.client()
    options = {"dead_letter_exchange": "", "dead_letter_key": "q", "is_durable": is_durable_queue}
    client.declare("q", length_max=2, **options)
    client.publish("q", b"1", b"2", is_durable=is_durable)
    client.consume("q", credit=1)
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("q") == [b"2", b"1"]
    assert rig.core.context.figures.dead_letters_lost == 0
    rig.check_log()
    check_invariants(rig.state)


@pytest.mark.parametrize("is_durable_other", [True, False])
def test_what_is_rejected_goes_to_its_own_queue_and_to_others_that_are_its_targets_too(
    is_durable_other: bool,
) -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", length_max=2, dead_letter_exchange="x")
    client.declare("other", is_durable=is_durable_other)
    client.exchange("x", "q", "other")
    client.publish("q", b"1", b"2")
    client.consume("q", credit=1)
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("q") == [b"2", b"1"] and rig.bodies("other") == [b"1"]
    rig.check_log()
    check_invariants(rig.state)


def test_what_failed_too_often_goes_to_the_end_of_its_own_queue_and_begins_anew() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", delivery_count_max=1, dead_letter_exchange="", dead_letter_key="q")
    client.publish("q", b"1", b"2")
    client.consume("q", credit=1)
    client.settle("q", disposition=Disposition.FAIL)
    assert rig.bodies("q") == [b"2", b"1"]
    queue = rig.state.queues.by_name["q"]
    assert [queue.delivery_count(position) for position in queue.positions()] == [0, 0]
    rig.check_log()
    check_invariants(rig.state)


def test_what_expires_in_its_own_dead_letter_queue_is_gone_and_counted() -> None:
    """It would go round for ever without anybody having had it."""
    rig = Rig()
    client = rig.client()
    client.declare("q", message_ttl_ms=100, dead_letter_exchange="", dead_letter_key="q")
    client.publish("q", b"1")
    rig.pass_time(100)
    assert rig.bodies("q") == []
    assert rig.core.context.figures.dead_letters_lost == 1
    rig.check_log()


def test_a_dead_letter_key_alone_means_the_default_exchange() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_key="dead")
    client.publish("q", b"expires", ttl_ms=100)
    client.publish("q", b"rejected")
    rig.pass_time(100)
    client.consume("q")
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("dead") == [b"expires", b"rejected"]
    rig.check_log()


def test_a_queue_is_the_same_with_a_dead_letter_key_alone_and_with_the_default_exchange() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", dead_letter_key="dead")
    client.declare("q", dead_letter_key="dead", dead_letter_exchange="")
    client.declare("p", dead_letter_key="dead", dead_letter_exchange="")
    client.declare("p", dead_letter_key="dead")
    for options in (QueueOptions(), QueueOptions(dead_letter_key="else")):
        answered = client.do(DeclareQueueCommand(0, "q", options))
        assert answered.code is ErrorCode.ALREADY_EXISTS


def test_a_queue_that_an_older_version_declared_with_a_key_alone_has_that_target_too() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    rig.core.context.writer.append(DeclareQueue(None, "q", True, dead_letter_key="dead"), True)
    rig.pass_time(1)
    client.declare("q", dead_letter_key="dead")
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    assert rig.bodies("dead") == [b"1"]
    rig.check_log()


def test_a_worn_out_message_goes_to_the_dead_letters_and_its_failures_are_forgotten_there() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", delivery_count_max=2)
    client.declare("q", delivery_count_max=2, dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", b"1", b"2")
    client.consume("q", credit=3)
    first = client.positions("q")[0]
    client.settle("q", first, disposition=Disposition.FAIL)
    assert [delivered.delivery_count for delivered in client.in_hand.values()] == [0, 1]
    client.settle("q", first, disposition=Disposition.FAIL)
    assert rig.bodies("q") == [b"2"] and rig.bodies("dead") == [b"1"]
    client.consume("dead")
    assert client.in_hand["dead", client.positions("dead")[0]].delivery_count == 0
    rig.check_log()


def test_a_message_that_rollbacks_wore_out_is_dropped_without_a_target() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", delivery_count_max=1)
    client.publish("q", b"1")
    client.consume("q")
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    client.rollback(transaction)
    assert rig.bodies("q") == []
    rig.check_log()


def test_dead_letters_fill_their_queue_up_to_its_limit_and_the_rest_is_gone() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", length_max=3)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("dead", b"0")
    client.publish("q", b"1", b"2", b"3", b"4", b"5")
    client.consume("q")
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("dead") == [b"0", b"1", b"2"] and rig.bodies("q") == []
    assert [type(record) for record in rig.records()[-3:-1]] == [Move, Dequeue]
    rig.check_log()


def test_dead_letters_push_the_oldest_out_of_an_evicting_queue() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", length_max=2, is_evicting=True)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", b"1", b"2", b"3")
    client.consume("q")
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("dead") == [b"2", b"3"]
    rig.check_log()


def test_dead_letters_fan_out_with_the_durability_of_each_queue() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("durable")
    client.declare("transient", is_durable=False)
    client.exchange("x", "durable", "transient")
    client.declare("q", dead_letter_exchange="x")
    client.publish("q", b"kept")
    client.publish("q", b"lost", is_durable=False)
    client.consume("q")
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("durable") == rig.bodies("transient") == [b"kept", b"lost"]
    rig.check_log()
    rig = Rig(predecessor=rig, is_restarted=True)
    assert rig.bodies("durable") == [b"kept"]


def test_a_flood_of_expired_messages_is_taken_in_pieces() -> None:
    rig = Rig(PrimarySettings(expiry_batch_max=2))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b""] * 5, ttl_ms=1)
    lengths = []
    for _ in range(3):
        rig.pass_time(10)
        lengths.append(len(rig.bodies("q")))
    assert lengths == [3, 1, 0]
    assert LogIndex(rig.core.log_end) == rig.core.commit_index


def test_a_message_in_an_open_transaction_does_not_expire_before_its_commit() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    transaction = client.begin()
    client.ok(publish("q", b"1", ttl_ms=100, transaction=transaction, sequence=1))
    rig.pass_time(200)
    client.commit(transaction, 1)
    assert rig.bodies("q") == [b"1"]
    rig.pass_time(1)
    assert rig.bodies("q") == []
    rig.check_log()
