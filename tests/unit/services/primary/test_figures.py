"""What a primary counts for operators."""

import pytest

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import BackupSaid, BackupStreamClosed, StoreConnected, StoreLost, Tick
from lockstep.core.replication import Acknowledge
from services.primary.core.figures import FAILOVER
from tests.unit.services.primary.primary_rig import SET, Rig, publish
from tests.unit.services.replicas import PrimaryBench, entry, member

A, B, C = member("a"), member("b"), member("c")


def test_transactions_are_counted_by_how_they_ended() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    for number in range(3):
        transaction = client.begin()
        client.publish("q", b"body", transaction=transaction, sequence=1)
        if number == 2:
            client.rollback(transaction)
        else:
            client.commit(transaction, 1)
    figures = rig.core.context.figures
    assert dict(figures.ended) == {"committed": 2, "rolled_back": 1}
    assert (figures.enqueued, figures.dequeued) == (2, 0)


def test_messages_that_come_to_no_dead_letter_target_are_counted() -> None:
    """It is full, or not there: nobody else hears of it."""
    rig = Rig()
    client = rig.client()
    client.declare("dead", length_max=1)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead", message_ttl_ms=100)
    client.declare("astray", dead_letter_exchange="elsewhere", message_ttl_ms=100)
    client.declare("gone", message_ttl_ms=100)
    for queue in ("q", "astray", "gone"):
        client.publish(queue, b"1", b"2", b"3")
    rig.pass_time(100)
    figures = rig.core.context.figures
    assert rig.bodies("dead") == [b"1"] and figures.dead_letters_lost == 2 + 3


def test_what_a_new_epoch_rolls_back_is_counted_as_such() -> None:
    rig = Rig()
    rig.client().begin()
    rig.feed(Tick(SET))
    successor = Rig(predecessor=rig)
    assert dict(successor.core.context.figures.ended) == {FAILOVER: 1}


def test_a_session_that_comes_back_is_counted_and_a_new_one_is_not() -> None:
    rig = Rig()
    client = rig.client()
    assert rig.core.context.figures.resumed == 0
    client.resume()
    assert rig.core.context.figures.resumed == 1


def test_a_commit_lasts_from_the_append_until_the_commit_index_is_behind_it() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    before = rig.core.context.figures.commit_seconds.sum
    rig.holds_store = True
    for _ in range(4):
        client.command(publish("q", b"body"))
    rig.boottime_ms += 250
    rig.acknowledge()
    figures = rig.core.context.figures.commit_seconds
    # Two frames were on their way, and what came meanwhile went into a third: each counts from its first record.
    assert figures.sum - before == pytest.approx(0.75)


def test_what_waits_to_be_committed_is_told_since_it_was_appended() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    assert rig.core.waits_since_ms == 0
    rig.holds_store = True
    appended_ms = rig.boottime_ms
    client.command(publish("q", b"first"))
    rig.boottime_ms += 250
    client.command(publish("q", b"second"))
    assert rig.core.waits_since_ms == appended_ms
    rig.acknowledge()
    assert rig.core.waits_since_ms == 0


def test_what_finds_no_frame_at_once_waits_too() -> None:
    bench = PrimaryBench(entry(2, A))
    bench.feed(StoreLost(SET))
    bench.write("q")
    assert bench.core.waits_since_ms == bench.now.boottime_ms
    bench.feed(StoreConnected(SET))
    bench.feed(Tick(SET))
    assert bench.core.waits_since_ms == 0


def test_members_are_reached_while_they_have_a_stream() -> None:
    bench = PrimaryBench(entry(2, A, B, C, min_in_sync=2))
    assert bench.core.in_sync_reachable == 1
    bench.subscribe(1, B)
    bench.subscribe(2, C)
    assert bench.core.in_sync_reachable == 3
    bench.feed(BackupStreamClosed(SET, 1))
    bench.feed(BackupStreamClosed(SET, 2))
    # The map keeps as many as the minimum; nobody but the primary is there.
    assert bench.core.in_sync_reachable == 1 < bench.core.membership.set_map.min_in_sync


def test_a_learner_and_another_memory_of_a_member_are_not_reached_members() -> None:
    bench = PrimaryBench(entry(2, A, B, learners=(C,)))
    bench.subscribe(1, member("b", 1))
    bench.subscribe(2, C)
    assert bench.core.in_sync_reachable == 1


def test_a_word_of_a_lower_epoch_is_counted() -> None:
    bench = PrimaryBench(entry(2, A, B))
    assert bench.core.context.figures.fenced == 0
    said = Acknowledge(bench.core.context.state.set_name, Epoch(1), B.broker, B.incarnation, LogIndex(1))
    bench.feed(BackupSaid(said.set_name, 1, said))
    assert bench.core.context.figures.fenced == 1
