"""The client of committed events over fake brokers that die, hang, and are away."""

import time

import pytest

from lockstep.client.event_errors import EventsOutOfRange, OffsetMismatch
from lockstep.client.event_offsets import EventOffset
from lockstep.client.event_reading import Range, read_range
from lockstep.client.events import EventsClient, Start
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.wire.v1 import events_pb2 as pb
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving, Transaction, enqueue

NOTHING = EventOffset(0, 0)


def log_of(*sizes: int) -> list[Transaction]:
    """Transactions of so many events, at the indexes 10, 20, ..."""
    return [
        Transaction(10 * number, tuple(enqueue("q", f"{number}.{place}".encode()) for place in range(size)))
        for number, size in enumerate(sizes, 1)
    ]


def test_an_offset_keeps_what_a_broker_has_said_of_its_epoch() -> None:
    """And asks with that; it is the same place all the same."""
    offset = EventOffset(10, 2, 7)
    assert EventOffset.of(offset.in_set("east")).reign == 7
    assert offset == EventOffset(10, 2) and EventOffset.of(EventOffset(10, 2).in_set("east")).reign == 0


def bodies(batches: "list[pb.EventBatch]") -> list[str]:
    """Of all events, in order."""
    found = []
    for batch in batches:
        at = 0
        for length in batch.events.body_lengths:
            found.append(batch.events.bodies[at : at + length].decode())
            at += length
    return found


def test_a_group_is_opened_once_and_stands_where_it_acknowledged() -> None:
    with (
        Serving(FakeEvents({"east": log_of(1, 2), "west": []})) as serving,
        EventsClient(serving.addresses) as client,
    ):
        first = client.open_subscription("g", Start.START_EARLIEST)
        assert (first.is_new, first.offsets) == (True, {"east": NOTHING, "west": NOTHING})
        client.acknowledge("g", {"east": EventOffset(10, 1)})
        again = client.open_subscription("g")
        assert (again.is_new, again.offsets["east"]) == (False, EventOffset(10, 1))
        assert client.subscriptions()["g"]["east"] == EventOffset(10, 1)
        client.close_subscription("g")
        assert client.subscriptions() == {}
        with pytest.raises(Rejected) as refused:
            client.plan("g", {})
        assert refused.value.code is ErrorCode.NOT_FOUND


def test_a_group_that_begins_far_back_is_asked_for_at_one_broker_until_it_has_begun() -> None:
    """However long that takes: patience is for brokers that do not answer."""
    brokers = [FakeEvents({"east": log_of(1)}, looks_left=1_000) for _ in range(3)]
    with Serving(*brokers) as serving, EventsClient(serving.addresses, patience_seconds=0.05) as client:
        assert client.open_subscription("g", Start.START_EARLIEST).offsets == {"east": NOTHING}
    assert sorted(broker.looks_left for broker in brokers) == [0, 1_000, 1_000]


def test_a_read_that_is_cut_goes_on_at_another_broker_without_a_gap_or_a_repetition() -> None:
    log = log_of(3, 7, 2, 1, 5)
    cut = [FakeEvents({"east": log}, cut_after=count) for count in (2, 1)]
    whole = FakeEvents({"east": log})
    with Serving(*cut, whole) as serving, EventsClient(serving.addresses[:1]) as client:
        batches = list(client.read("east", NOTHING, EventOffset(50, 1), brokers=serving.addresses))
    assert bodies(batches) == [event.body.decode() for one in log for event in one.events]
    # The second batch of the first broker ended inside a transaction: it was asked for again from its beginning.
    assert [cut[1].asked[0].start.index, whole.asked[0].start.index] == [10, 10]


def test_a_dead_broker_is_passed_by_and_others_are_learnt_from_the_cluster_map() -> None:
    log = {"east": log_of(3)}
    with Serving(FakeEvents(log), FakeEvents(log)) as serving:
        serving.stop(0)
        # Only the dead one and one that hears of the living are known at first.
        away = FakeEvents(log, is_away=True)
        with Serving(away) as knowing:
            knowing.cluster.members = serving.addresses
            with EventsClient([serving.addresses[0], *knowing.addresses], patience_seconds=10) as client:
                assert len(list(client.read("east", NOTHING, EventOffset(10, 1)))) == 1


def test_a_broker_that_hangs_is_left() -> None:
    log = {"east": log_of(3)}
    hung = FakeEvents(log, stalls_for=8.0)
    with Serving(hung, FakeEvents(log)) as serving, EventsClient(serving.addresses) as client:
        wanted = Range("east", NOTHING, EventOffset(10, 1))
        began = time.monotonic()
        batches = list(read_range(client._brokers, wanted, tuple(serving.addresses), 30.0, stall_seconds=1.0))
        assert len(bodies(batches)) == 3
        assert time.monotonic() - began < 7.9
        assert hung.asked


def test_the_search_ends_when_nobody_answers() -> None:
    away = Serving(FakeEvents({"east": []}, is_away=True))
    with away as serving, EventsClient(serving.addresses, patience_seconds=0.5) as client:
        began = time.monotonic()
        with pytest.raises(Rejected, match=r"no broker has answered for 0\.5 s") as refused:
            client.plan("g", {})
        assert refused.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(Rejected, match="away"):
            list(client.read("east", NOTHING, EventOffset(10, 1)))
        assert time.monotonic() - began < 5


def test_what_is_gone_and_what_is_another_log_are_errors_of_their_own() -> None:
    with (
        Serving(FakeEvents({"east": log_of(1, 1, 1)}, floor=10)) as serving,
        EventsClient(serving.addresses) as client,
    ):
        with pytest.raises(EventsOutOfRange):
            list(client.read("east", NOTHING, EventOffset(30, 1)))
        with pytest.raises(OffsetMismatch):
            list(client.read("east", EventOffset(20, 7), EventOffset(30, 1)))
        with pytest.raises(Rejected) as refused:
            list(client.read("south", NOTHING, EventOffset(30, 1)))
        assert refused.value.code is ErrorCode.UNKNOWN_SET


def test_the_tail_gives_what_is_committed() -> None:
    with Serving(FakeEvents({"east": log_of(1, 2)})) as serving, EventsClient(serving.addresses) as client:
        assert bodies(list(client.tail("east", EventOffset(10, 1)))) == ["2.0", "2.1"]


@pytest.mark.parametrize(("is_polite", "said"), [(False, "cut"), (True, "inside a transaction")])
def test_who_goes_on_with_a_tail_that_was_cut_has_no_event_twice(is_polite: bool, said: str) -> None:
    log = log_of(3, 7, 2)
    cut = FakeEvents({"east": log}, cut_after=2, is_cut_politely=is_polite)
    whole = FakeEvents({"east": log})
    found: list[pb.EventBatch] = []
    with Serving(cut) as serving, EventsClient(serving.addresses) as client:
        tail = client.tail("east", NOTHING)
        # The second batch ends inside a transaction.
        with pytest.raises(Rejected, match=said):
            found.extend(tail)
    last = EventOffset.of(found[-1].end)
    with Serving(whole) as serving, EventsClient(serving.addresses) as client:
        found += client.tail("east", last)
    assert bodies(found) == [event.body.decode() for one in log for event in one.events]


def test_a_set_is_committed_as_a_broker_says_that_has_a_replica_of_it() -> None:
    logs = {"east": log_of(1, 2), "west": log_of(1)}
    without, has = FakeEvents(logs, has_replicas=False), FakeEvents(logs, other_records=5)
    plan = pb.PlanResponse(
        ranges=[pb.PlanResponse.PlannedRange(to=NOTHING.in_set(name)) for name in sorted(logs)]
    )
    with Serving(without, has) as serving, EventsClient(serving.addresses) as client:
        for part in plan.ranges:
            part.brokers[:] = serving.addresses
        assert client.committed(plan) == {"east": 25, "west": 15}
        del plan.ranges[0].brokers[:]
    with (
        Serving(without) as serving,
        EventsClient(serving.addresses, patience_seconds=0.5) as client,
        pytest.raises(Rejected, match="no replica of 'east'"),
    ):
        client.committed(plan)


def test_a_client_without_addresses_is_refused() -> None:
    with pytest.raises(ValueError, match="no address"):
        EventsClient(" , ")
