"""Tx-queues, their votes, and the observers of transactions (DESIGN 3, 8)."""

from dataclasses import dataclass, field

import pytest

from lockstep.core.commands import CommitCommand
from lockstep.core.ids import BrokerId, Epoch, LogIndex, TransactionKey
from lockstep.core.records import Dequeue, Publish
from services.primary.core.tx_queue import TxQueueClosed, TxQueues, Vote
from tests.unit.services.primary.primary_rig import Rig, publish
from tests.unit.services.primary.test_names import names

KEY = (LogIndex(5), Epoch(1))
B, C = BrokerId("b"), BrokerId("c")


def test_nobody_subscribes_to_a_closed_tx_queue() -> None:
    queues = TxQueues()
    queue = queues.open(KEY, [B])
    queues.joined(C)
    queues.prepared(KEY, LogIndex(7))
    with pytest.raises(TxQueueClosed):
        queue.subscribe(BrokerId("d"))
    with pytest.raises(TxQueueClosed):
        queue.push(LogIndex(8), 1)
    queues.joined(BrokerId("d"))
    assert list(queue.subscriptions) == [B, C]


def test_the_acknowledgement_that_covers_the_prepare_is_the_ok() -> None:
    queues = TxQueues()
    queue = queues.open(KEY, [B, C])
    queues.acknowledged(B, LogIndex(6))
    queues.prepared(KEY, LogIndex(7))
    queues.acknowledged(B, LogIndex(6))
    assert queue.subscriptions[B].vote is Vote.NONE
    queues.acknowledged(B, LogIndex(9))
    queues.left(C)
    assert {broker: found.vote for broker, found in queue.subscriptions.items()} == {B: Vote.OK}


class CountedIndex(int):
    """A log index that counts what it is compared with."""

    compared = 0

    def __ge__(self, other: int) -> bool:
        self.compared += 1
        return int(self) >= other


def test_an_acknowledgement_looks_at_no_votes_but_those_that_it_gives() -> None:
    """However many branches stay prepared, and whatever another backup has not acknowledged."""
    queues = TxQueues()
    keys = [(LogIndex(number), Epoch(1)) for number in range(100)]
    for number, key in enumerate(keys):
        queues.open(key, [B, C])
        queues.prepared(key, LogIndex(200 + number))
    queues.acknowledged(B, LogIndex(299))
    again = CountedIndex(300)
    queues.acknowledged(B, again)  # type: ignore[arg-type]
    assert again.compared == 0
    queues.acknowledged(C, LogIndex(249))
    votes = [queues.by_key[key].subscriptions[C].vote for key in keys]
    assert votes == [Vote.OK] * 50 + [Vote.NONE] * 50
    one_more = CountedIndex(250)
    queues.acknowledged(C, one_more)  # type: ignore[arg-type]
    assert one_more.compared == 2, "the one that it covers, and the next"


def test_a_backup_that_comes_back_is_asked_for_no_vote_that_it_left_without() -> None:
    queues = TxQueues()
    other = (LogIndex(6), Epoch(1))
    queue, still_open = queues.open(KEY, [B]), queues.open(other, [B])
    queues.prepared(KEY, LogIndex(7))
    queues.left(B)
    queues.joined(B)
    queues.prepared(other, LogIndex(8))
    queues.acknowledged(B, LogIndex(9))
    assert not queue.subscriptions
    assert still_open.subscriptions[B].vote is Vote.OK


def test_a_tx_queue_is_released_when_its_outcome_is_committed() -> None:
    queues = TxQueues()
    queues.open(KEY, [B])
    queues.prepared(KEY, LogIndex(7))
    queues.ended(KEY, LogIndex(7))
    queues.release(LogIndex(6))
    assert list(queues.by_key) == [KEY]
    queues.release(LogIndex(7))
    assert not queues.by_key
    queues.acknowledged(B, LogIndex(9))


@dataclass
class Log:
    """An observer, and the factory of all of them."""

    told: list[tuple[TransactionKey, str]] = field(default_factory=list)
    hears_whole: bool = False

    def create(self, key: TransactionKey) -> "OneObserver":
        self.told.append((key, "begin"))
        return OneObserver(self, key)


@dataclass
class OneObserver:
    log: Log
    key: TransactionKey

    def _note(self, event: str) -> None:
        self.log.told.append((self.key, event))

    def publish(self, index: LogIndex, record: Publish) -> None:
        self._note("publish")

    def accept(self, index: LogIndex, record: Dequeue) -> None:
        self._note("accept")

    def prepare(self, index: LogIndex) -> None:
        self._note("prepare")

    def commit(self, index: LogIndex) -> None:
        self._note("commit")

    def rollback(self, index: LogIndex) -> None:
        self._note("rollback")


def test_an_observer_hears_of_every_event_of_its_transaction_once_and_in_order() -> None:
    log = Log()
    rig = Rig(factories=(log,))
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q")
    one, two = client.begin(), client.begin()
    client.ok(publish("q", b"2", transaction=one, sequence=1))
    client.settle("q", transaction=one, sequence=2)
    client.ok(publish("q", b"3", transaction=two, sequence=1))
    client.commit(one, 2)
    client.rollback(two)
    client.rollback(one)
    assert [event for key, event in log.told if key == one] == [
        "begin",
        "publish",
        "accept",
        "prepare",
        "commit",
    ]
    assert [event for key, event in log.told if key == two] == ["begin", "publish", "rollback"]


def test_of_a_transaction_that_is_appended_whole_those_hear_who_want_to() -> None:
    all_of_them, others = Log(hears_whole=True), Log()
    rig = Rig(factories=(all_of_them, others))
    client = rig.client()
    client.declare("q")
    key, _ = names(client, 2)
    rig.holds_store = True
    client.command(CommitCommand(0, key, 1, 0, publish("q", b"1", transaction=key, sequence=1)))
    assert not rig.core.context.tx_queues.by_key
    events = ["begin", "publish", "prepare", "commit"]
    assert [event for heard, event in all_of_them.told if heard == key] == events
    assert [event for heard, event in others.told if heard == key] == []


def test_a_transaction_with_a_begin_is_heard_of_by_all_even_if_its_rest_is_appended_whole() -> None:
    log, other = Log(), Log(hears_whole=True)
    rig = Rig(factories=(log, other))
    client = rig.client()
    client.declare("q")
    key = client.begin()
    rig.holds_store = True
    client.command(CommitCommand(0, key, 1, 0, publish("q", b"1", transaction=key, sequence=1)))
    for each in (log, other):
        told = [event for heard, event in each.told if heard == key]
        assert told == ["begin", "publish", "prepare", "commit"]
    assert list(rig.core.context.tx_queues.by_key) == [key]
    rig.acknowledge()
    assert not rig.core.context.tx_queues.by_key
