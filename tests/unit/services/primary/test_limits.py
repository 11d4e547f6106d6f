"""Limits of queues: refusing, evicting, and the room that open transactions reserve."""

from lockstep.core.commands import (
    BindCommand,
    Disposition,
)
from lockstep.core.errors import ErrorCode
from tests.unit.services.primary.primary_rig import Rig, publish


def test_a_queue_that_does_not_evict_refuses_the_whole_batch() -> None:
    client = Rig().client()
    client.declare("q", length_max=2)
    assert client.publish("q", b"1", b"2", b"3").code is ErrorCode.QUEUE_FULL
    assert client.publish("q", b"1", b"2").code is ErrorCode.NONE
    refused = client.publish("q", b"3")
    assert refused.code is ErrorCode.QUEUE_FULL
    assert "'q'" in refused.message and "length_max is 2" in refused.message
    assert client.rig.bodies("q") == [b"1", b"2"]


def test_bytes_are_counted_with_properties() -> None:
    client = Rig().client()
    client.declare("q", bytes_max=10)
    assert client.publish("q", bytes(6), bytes(5)).code is ErrorCode.QUEUE_FULL
    assert client.publish("q", bytes(6)).code is ErrorCode.NONE
    assert client.publish("q", bytes(5)).code is ErrorCode.QUEUE_FULL
    assert client.publish("q", bytes(4)).code is ErrorCode.NONE


def test_a_full_queue_refuses_for_all_queues_of_the_exchange() -> None:
    client = Rig().client()
    client.declare("full", length_max=1)
    client.declare("free")
    client.exchange("x", "full", "free")
    client.publish("full", b"1")
    assert client.publish("", b"2", exchange="x").code is ErrorCode.QUEUE_FULL
    assert client.rig.bodies("free") == []


def test_open_transactions_reserve_room_and_a_rollback_gives_it_back() -> None:
    client = Rig().client()
    client.declare("q", length_max=2)
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    assert client.publish("q", b"2", b"3").code is ErrorCode.QUEUE_FULL
    assert client.publish("q", b"2").code is ErrorCode.NONE
    assert client.commit(transaction, 1).code is ErrorCode.NONE
    assert client.rig.bodies("q") == [b"2", b"1"]
    other = client.begin()
    assert client.do(publish("q", b"4", transaction=other, sequence=1)).code is ErrorCode.QUEUE_FULL
    client.rollback(other)
    client.consume("q")
    client.settle("q")
    assert client.publish("q", b"5", b"6").code is ErrorCode.NONE


def test_an_evicting_queue_drops_the_oldest_that_nobody_has() -> None:
    client = Rig().client()
    client.declare("q", length_max=3, is_evicting=True)
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=1)
    client.publish("q", b"4", b"5")
    assert client.rig.bodies("q") == [b"1", b"4", b"5"]
    client.settle("q", disposition=Disposition.RELEASE)
    client.publish("q", *[str(number).encode() for number in range(10, 20)])
    assert client.rig.bodies("q") == [b"17", b"18", b"19"]
    client.rig.check_log()


def test_an_evicting_queue_counts_bytes_too() -> None:
    client = Rig().client()
    client.declare("q", bytes_max=10, is_evicting=True)
    client.publish("q", bytes(4), bytes(5))
    client.publish("q", bytes(6))
    assert [len(body) for body in client.rig.bodies("q")] == [6]


def test_a_commit_evicts_what_it_pushes_out() -> None:
    client = Rig().client()
    client.declare("q", length_max=2, is_evicting=True)
    client.publish("q", b"1", b"2")
    transaction = client.begin()
    client.ok(publish("q", b"3", b"4", transaction=transaction, sequence=1))
    assert client.rig.bodies("q") == [b"1", b"2"]
    client.commit(transaction, 1)
    assert client.rig.bodies("q") == [b"3", b"4"]
    client.rig.check_log()


def test_transients_that_overflow_a_queue_evict_durable_messages_by_a_durable_record() -> None:
    client = Rig().client()
    client.declare("q", length_max=2, is_evicting=True)
    client.publish("q", b"1", b"2")
    client.publish("q", b"3", b"4", is_durable=False)
    assert client.rig.bodies("q") == [b"3", b"4"]
    client.rig.check_log()


def test_a_headers_exchange_counts_only_what_goes_to_the_full_queue() -> None:
    client = Rig().client()
    client.declare("full", length_max=1)
    client.exchange("x", kind="headers")
    client.ok(BindCommand(0, "x", "full", "", (("colour", "red"),)))
    client.publish("full", b"1")
    assert client.publish("", b"2", exchange="x").value == 0
    client.rig.check_log()


def test_a_full_disk_rejects_publishes_and_lets_everything_else_go_on() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    rig.fill_disk()
    refused = client.publish("q", b"2")
    assert refused.code is ErrorCode.STORE_FULL and "orders" in refused.message
    client.consume("q")
    assert client.settle("q").code is ErrorCode.NONE
    rig.fill_disk(1 << 50)
    assert client.publish("q", b"3").code is ErrorCode.NONE
