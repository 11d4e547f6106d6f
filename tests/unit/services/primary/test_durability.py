"""Durability of effects: a message is durable where it and its queue are, whatever the rest of its batch is."""

import msgspec
import pytest

from lockstep.core.commands import (
    CommitCommand,
    OutgoingMessage,
    PublishCommand,
)
from lockstep.core.ids import TransactionKey
from lockstep.core.records import Prepare, Rollback
from tests.unit.services.primary.primary_rig import Rig, RigClient, is_ascending, publish

MIXED = tuple(OutgoingMessage(b"", b"%d" % number, number % 2 == 0) for number in range(6))


def mixed(exchange: str, queue: str, transaction: TransactionKey | None = None) -> PublishCommand:
    return PublishCommand(0, exchange, queue, MIXED, transaction, 1 if transaction else 0)


@pytest.fixture
def client() -> RigClient:
    client = Rig().client()
    client.declare("durable")
    client.declare("transient", is_durable=False)
    client.exchange("x", "durable", "transient")
    return client


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_mixed_batch_keeps_its_order_and_loses_its_transients_with_a_restart(
    client: RigClient, is_in_transaction: bool
) -> None:
    rig = client.rig
    transaction = client.begin() if is_in_transaction else None
    assert client.ok(mixed("", "durable", transaction)) == 6
    if transaction is not None:
        client.commit(transaction, 1)
    client.consume("durable")
    assert client.bodies("durable") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert is_ascending(client.positions("durable"))
    assert [delivered.is_durable for delivered in client.in_hand.values()] == [True, False] * 3
    rig.check_log()
    rig = Rig(predecessor=rig, is_restarted=True)
    assert rig.bodies("durable") == [b"0", b"2", b"4"]


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_fanout_to_durable_and_transient_queues_counts_every_enqueue_once(
    client: RigClient, is_in_transaction: bool
) -> None:
    rig = client.rig
    transaction = client.begin() if is_in_transaction else None
    assert client.ok(mixed("x", "", transaction)) == 12
    if transaction is not None:
        client.commit(transaction, 1)
    for queue in ("durable", "transient"):
        assert rig.bodies(queue) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    client.consume("durable")
    client.consume("transient")
    assert [found.is_durable for (queue, _), found in client.in_hand.items() if queue == "transient"] == [
        False
    ] * 6
    assert client.settle("durable").value == 6
    assert client.settle("transient").value == 6
    assert rig.bodies("durable") == rig.bodies("transient") == []
    assert not len(rig.state.contents)
    rig.check_log()


def test_a_batch_of_one_kind_takes_one_record_for_each_kind_of_queue(client: RigClient) -> None:
    before = client.rig.core.log_end
    client.publish("", *[b""] * 100, exchange="x")
    assert client.rig.core.log_end - before == 3, "durable, transient, answer"
    client.rig.check_log()


def test_accepts_of_both_kinds_commit_together_and_come_back_together(client: RigClient) -> None:
    rig = client.rig
    client.ok(mixed("", "durable"))
    client.consume("durable")
    transaction = client.begin()
    assert client.settle("durable", transaction=transaction, sequence=1).value == 6
    client.rollback(transaction)
    assert client.bodies("durable") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert {found.delivery_count for found in client.in_hand.values()} == {1}
    transaction = client.begin()
    client.settle("durable", transaction=transaction, sequence=1)
    client.commit(transaction, 1)
    assert rig.bodies("durable") == []
    rig.check_log()


def test_what_goes_nowhere_is_done_with_no_enqueue(client: RigClient) -> None:
    client.exchange("empty")
    assert client.publish("", b"1", exchange="empty").value == 0
    transaction = client.begin()
    assert client.ok(publish("", b"1", exchange="empty", transaction=transaction, sequence=1)) == 0
    assert client.commit(transaction, 1).value == 3
    client.rig.check_log()


@pytest.mark.parametrize(
    ("commands", "records"),
    [
        ((), 0),
        ((publish("durable", b"1"),), 1),
        ((publish("transient", b"1"),), 0),
        ((publish("transient", b"1"), publish("durable", b"2")), 1),
        ((publish("durable", b"1", b"2"), publish("durable", b"3")), 2),
        ((mixed("", "durable"),), 3),
        ((mixed("x", ""),), 3),
        ((publish("", b"1", exchange="x"),), 1),
        ((publish("", b"1", exchange="empty"),), 0),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_together", [False, True])
def test_the_end_of_a_transaction_says_how_many_durable_records_it_has(
    client: RigClient,
    commands: tuple[PublishCommand, ...],
    records: int,
    is_committed: bool,
    is_together: bool,
) -> None:
    """Not messages, and not queues: who reads the durable log alone counts them."""
    client.exchange("empty")
    key = client.begin()
    parts = [
        msgspec.structs.replace(command, transaction=key, sequence=sequence)
        for sequence, command in enumerate(commands, 1)
    ]
    last = parts.pop() if parts and is_together and is_committed else None
    for command in parts:
        client.ok(command)
    if is_committed:
        client.ok(CommitCommand(0, key, len(commands), last_publish=last))
    else:
        client.rollback(key)
    (end,) = [record for record in client.rig.records() if isinstance(record, Prepare | Rollback)]
    assert end.durable_records == records
    client.rig.check_log()
