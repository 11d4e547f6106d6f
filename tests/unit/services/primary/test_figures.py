"""What a primary counts for operators."""

import pytest

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import BackupSaid, Tick
from lockstep.core.replication import Acknowledge
from services.primary.core.figures import FAILOVER
from tests.unit.services.primary.primary_rig import SET, Rig, publish
from tests.unit.services.replicas import PrimaryBench, entry, member

A, B = member("a"), member("b")


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


def test_a_word_of_a_lower_epoch_is_counted() -> None:
    bench = PrimaryBench(entry(2, A, B))
    assert bench.core.context.figures.fenced == 0
    said = Acknowledge(bench.core.context.state.set_name, Epoch(1), B.broker, B.incarnation, LogIndex(1))
    bench.feed(BackupSaid(said.set_name, 1, said))
    assert bench.core.context.figures.fenced == 1
