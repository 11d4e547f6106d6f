"""The readers of the source as Spark calls them, without a JVM."""

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from lockstep.client.event_errors import EventsOutOfRange
from services.pipeline.options import SourceOptions
from services.pipeline.source import LockstepReader, LockstepStreamReader, Part
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving, Transaction, enqueue


def log_of(count: int, size: int, first: int = 1) -> list[Transaction]:
    return [
        Transaction(10 * number, tuple(enqueue("q", f"{number}.{place}".encode()) for place in range(size)))
        for number in range(first, first + count)
    ]


@pytest.fixture
def broker() -> FakeEvents:
    return FakeEvents({"east": log_of(30, 2), "west": log_of(5, 3), "north": []})


@pytest.fixture
def serving(broker: FakeEvents) -> Iterator[Serving]:
    with Serving(broker) as serving:
        yield serving


@pytest.fixture
def reader(serving: Serving) -> Iterator[LockstepStreamReader]:
    reader = LockstepStreamReader(options(serving))
    yield reader
    reader.stop()


def options(serving: Serving, **more: str) -> dict[str, str]:
    return {"brokers": serving.addresses[0], "group": "g", "start": "earliest", "waitSeconds": "0", **more}


def rows(reader: Any, parts: "list[Any]") -> list[tuple[str, int, int]]:
    found = []
    for part in parts:
        # As Spark does it: a copy of the reader and of the part, in another process.
        copy, its_part = pickle.loads(pickle.dumps((reader, part)))
        for batch in copy.read(its_part):
            found += list(
                zip(
                    *(batch.column(name).to_pylist() for name in ("resource_set", "index", "place")),
                    strict=True,
                )
            )
    return found


def expected(broker: FakeEvents) -> list[tuple[str, int, int]]:
    return [
        (name, one.index, place)
        for name, log in sorted(broker.logs.items())
        for one in log
        for place in range(len(one.events))
    ]


def test_a_new_group_is_pinned_once_however_often_it_is_asked_for(
    broker: FakeEvents, serving: Serving
) -> None:
    first = LockstepStreamReader(options(serving, start="latest"))
    start = first.initialOffset()
    broker.logs["east"] += log_of(3, 1, first=50)
    again = LockstepStreamReader(options(serving, start="latest")).initialOffset()
    assert start == again == {"east": [300, 1], "north": [0, 0], "west": [50, 1]}
    first.stop()


def test_micro_batches_are_limited_whole_and_together_everything(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    begin = start = reader.initialOffset()
    found: list[tuple[str, int, int]] = []
    count = 0
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        batch = rows(reader, reader.partitions(start, end))
        assert len(batch) <= 20 + 3
        found += batch
        start, count = end, count + 1
    assert count > 3
    assert sorted(found) == sorted(expected(broker))
    # The same offsets again, of a reader that knows nothing of the plan.
    fresh = LockstepStreamReader(reader._options)
    assert rows(fresh, fresh.partitions(begin, end)) == expected(broker)
    fresh.stop()


def test_a_limit_that_gets_nowhere_is_raised(broker: FakeEvents, reader: LockstepStreamReader) -> None:
    broker.least_events = 30
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert [plan.max_events for plan in broker.plans] == [10, 20, 40]
    assert 30 <= len(rows(reader, list(reader.partitions(start, end)))) < 50
    broker.least_events = 1_000_000
    everything = reader.latestOffset(end, ReadMaxRows(50_000))
    assert everything["east"] == [300, 1]


def test_a_limit_keeps_no_set_behind_where_time_counts(broker: FakeEvents, serving: Serving) -> None:
    """What holds a set back may have ended much later elsewhere: a watermark would pass the set meanwhile."""
    broker.limited_holds = {"west"}
    timed = LockstepStreamReader(options(serving, holdSeconds="30"))
    start = timed.initialOffset()
    assert timed.latestOffset(start, ReadMaxRows(20)) == {"east": [300, 1], "north": [0, 0], "west": [50, 1]}
    assert [plan.max_events for plan in broker.plans] == [20, 0]
    timed.stop()
    other = LockstepStreamReader(options(serving))
    end = other.latestOffset(start, ReadMaxRows(20))
    assert (end["east"][0] < 300, end["west"]) == (True, [0, 0])
    other.stop()


def test_without_a_limit_everything_is_one_batch_split_in_parts(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    begin = reader.initialOffset()
    parts = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
    assert [(part.resource_set, part.begin[0], part.end[0]) for part in parts if isinstance(part, Part)] == [
        ("east", 0, 100),
        ("east", 100, 200),
        ("east", 200, 300),
        ("west", 0, 50),
    ]
    assert rows(reader, list(parts)) == expected(broker)


def test_a_query_of_what_is_there_ends_though_more_comes(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.logs["east"] += log_of(50, 2, first=40)
    ends = []
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        ends.append(end)
        start = end
    assert ends[-1] == {"east": [300, 1], "north": [0, 0], "west": [50, 1]}
    assert len(ends) > 3


def test_a_query_ends_at_its_target_although_a_set_is_held_back_afterwards(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.holds = {"west"}
    ends = []
    while (end := reader.latestOffset(start, ReadMaxRows(1000))) != start:
        ends.append(end)
        start = end
        assert len(ends) < 10
    assert ends[-1] == {"east": [300, 1], "north": [0, 0], "west": [50, 1]}


def test_a_query_reaches_what_was_committed_though_a_plan_ends_before(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    start = reader.initialOffset()
    broker.described_max = 2
    reader.prepareForTriggerAvailableNow()
    broker.described_max = 0
    found: list[tuple[str, int, int]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        batch = rows(reader, list(reader.partitions(start, end)))
        assert len(batch) <= 20 + 3
        found += batch
        start = end
    assert sorted(found) == expected(broker)


def test_a_query_that_is_held_far_from_its_target_goes_there_by_what_was_planned(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    start = reader.initialOffset()
    broker.described_max = 2
    reader.prepareForTriggerAvailableNow()
    broker.holds = {"east", "west"}
    ends = []
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        assert len(rows(reader, list(reader.partitions(start, end)))) <= 2 * (2 + 3)
        ends.append(end)
        start = end
    assert ends[-1] == {"east": [300, 1], "north": [0, 0], "west": [50, 1]}


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_query_reads_a_set_that_whoever_plans_has_not_heard_of_yet(
    broker: FakeEvents, reader: LockstepStreamReader, has_checkpoint: bool
) -> None:
    """Where the group stands in it is known: all sets were asked for that."""
    if has_checkpoint:
        reader.initialOffset()
    broker.unheard = {"west"}
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    found: list[tuple[str, int, int]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        found += rows(reader, list(reader.partitions(start, end)))
        start = end
    assert sorted(found) == expected(broker)


def test_commit_acknowledges_and_a_new_checkpoint_begins_there(
    broker: FakeEvents, serving: Serving, reader: LockstepStreamReader
) -> None:
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(20))
    reader.commit(end)
    assert LockstepStreamReader(options(serving)).initialOffset() == end
    assert broker.groups["g"]["east"].index == end["east"][0]


def test_a_new_query_of_what_is_there_ends_though_its_group_is_new(
    broker: FakeEvents, serving: Serving
) -> None:
    """Spark prepares it first: whether it has a checkpoint is not known then."""
    reader = LockstepStreamReader(options(serving))
    reader.prepareForTriggerAvailableNow()
    assert broker.groups == {}
    start = reader.initialOffset()
    broker.logs["east"] += log_of(50, 2, first=40)
    assert reader.latestOffset(start, ReadAllAvailable()) == {
        "east": [300, 1],
        "north": [0, 0],
        "west": [50, 1],
    }
    reader.stop()


def test_a_group_that_was_closed_is_not_opened_anew_for_an_old_checkpoint(
    broker: FakeEvents, serving: Serving
) -> None:
    first = LockstepStreamReader(options(serving, start="latest"))
    start = first.initialOffset()
    first.stop()
    broker.groups.clear()
    broker.logs["south"] = log_of(5, 1)
    again = LockstepStreamReader(options(serving, start="latest"))
    again.prepareForTriggerAvailableNow()
    with pytest.raises(ValueError, match="no group 'g', and the query has a checkpoint of it"):
        again.latestOffset(start, ReadMaxRows(20))
    with pytest.raises(ValueError, match="no group 'g'"):
        again.partitions(start, {**start, "south": [50, 1]})
    assert broker.groups == {}
    again.stop()


def test_a_resource_set_that_comes_later_is_read_from_its_beginning(
    broker: FakeEvents, reader: LockstepStreamReader
) -> None:
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    broker.logs["south"] = log_of(3, 1)
    end = reader.latestOffset(start, ReadAllAvailable())
    expected_rows = [("south", 10, 0), ("south", 20, 0), ("south", 30, 0)]
    assert rows(reader, list(reader.partitions(start, end))) == expected_rows
    fresh = LockstepStreamReader(reader._options)
    assert rows(fresh, list(fresh.partitions(start, end))) == expected_rows
    fresh.stop()


def test_what_is_gone_is_an_error_and_never_a_gap(broker: FakeEvents, reader: LockstepStreamReader) -> None:
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    broker.floor = 50
    with pytest.raises(EventsOutOfRange):
        rows(reader, list(parts))


def test_the_limit_is_the_option(serving: Serving) -> None:
    assert LockstepStreamReader(options(serving, maxEvents="7")).getDefaultReadLimit() == ReadMaxRows(7)
    assert LockstepStreamReader(options(serving, maxEvents="0")).getDefaultReadLimit() == ReadAllAvailable()


def test_the_batch_reader_reads_what_is_kept_up_to_an_end(broker: FakeEvents, serving: Serving) -> None:
    reader = LockstepReader(options(serving))
    assert rows(reader, list(reader.partitions())) == expected(broker)
    some = LockstepReader(options(serving, end='{"east": [20, 1]}'))
    assert rows(some, list(some.partitions())) == expected(broker)[:4]


def test_the_batch_reader_reaches_what_was_committed_though_a_plan_ends_before(
    broker: FakeEvents, serving: Serving
) -> None:
    broker.described_max = 2
    reader = LockstepReader(options(serving))
    parts: list[Any] = list(reader.partitions())
    assert rows(reader, parts) == expected(broker)
    assert [part.end[0] for part in parts if part.resource_set == "west"] == [20, 40, 50]


def test_the_batch_reader_ends_though_more_is_committed_than_a_plan_looks_at() -> None:
    logs = {"east": log_of(30, 1), "west": log_of(5, 1)}

    def grow() -> None:
        logs["east"] += log_of(3, 1, first=len(logs["east"]) + 1)

    growing = FakeEvents(logs, described_max=2, before_plan=grow)
    with Serving(growing) as serving:
        reader = LockstepReader(options(serving))
        found: list[Any] = []
        planning = threading.Thread(target=lambda: found.extend(reader.partitions()), daemon=True)
        planning.start()
        planning.join(10)
        assert 35 <= len(rows(reader, found)) < 40
        assert len(growing.plans) < 30


def test_the_batch_reader_waits_for_what_is_being_committed(broker: FakeEvents, serving: Serving) -> None:
    broker.holds = {"east", "west"}
    threading.Timer(0.3, broker.holds.clear).start()
    reader = LockstepReader(options(serving))
    assert rows(reader, list(reader.partitions())) == expected(broker)


def test_the_batch_reader_goes_on_where_only_a_plan_with_a_limit_does(
    broker: FakeEvents, serving: Serving
) -> None:
    broker.unlimited_holds = {"east", "west"}
    reader = LockstepReader(options(serving))
    assert rows(reader, list(reader.partitions())) == expected(broker)


def test_records_without_events_and_what_is_held_for_ever_end_a_batch(
    broker: FakeEvents, serving: Serving
) -> None:
    broker.other_records, broker.holds = 7, {"west"}
    reader = LockstepReader(options(serving))
    began = time.monotonic()
    assert rows(reader, list(reader.partitions())) == expected(broker)[:60]
    assert time.monotonic() - began < 8


def test_the_batch_reader_of_nothing_has_no_rows(serving: Serving) -> None:
    reader = LockstepReader(options(serving, start="latest"))
    assert rows(reader, list(reader.partitions())) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"group": "g"}, "brokers"),
        ({"brokers": "a:1"}, "group"),
        ({"brokers": "a:1", "group": "g", "maxEvents": "-1"}, "not negative"),
        ({"brokers": "a:1", "group": "g", "start": '{"east": 7}'}, "offsets are"),
        ({"brokers": "a:1", "group": "g", "start": "tomorrow"}, "Expecting value"),
        ({"brokers": "a:1", "group": "g", "tlsCaFile": "c", "tlsKeyFile": "k"}, "go together"),
        (
            {"brokers": "a:1", "group": "g", "tlsCertificateFile": "c", "tlsKeyFile": "k"},
            "needs tlsCaFile",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SourceOptions.parse(given)


def test_options_have_names_without_case() -> None:
    parsed = SourceOptions.parse({"BROKERS": "a:1", "Group": "g", "maxevents": "5", "withoutContent": "True"})
    assert (parsed.max_events, parsed.without_content) == (5, True)
