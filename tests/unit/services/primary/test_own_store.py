"""The primary's own store: what counts as durable there is this log, and no other (R2, R3, history 23)."""

from lockstep.core.ids import Epoch, Incarnation, LogIndex
from lockstep.core.inputs import StoreSaid
from lockstep.core.store_protocol import Appended
from tests.unit.services.replicas import (
    SET,
    MemoryStore,
    PrimaryBench,
    copy_of,
    entry,
    frames,
    member,
)

A = member("a")


def test_a_disk_that_missed_a_cut_is_cut_before_it_counts() -> None:
    store = MemoryStore("disk-a", *frames(1, 1, 9), commit=3)
    bench = PrimaryBench(entry(2, A), store, copy_of(*frames(1, 1, 3), commit=3))
    assert store.content() == [(1, 1), (1, 2), (1, 3), (2, 4)]
    assert bench.core.commit_index == 4


def test_a_disk_that_holds_other_content_below_the_memorys_end_is_not_counted_for_it() -> None:
    memory = copy_of(*frames(1, 1, 3), *frames(2, 4, 6), commit=3)
    store = MemoryStore("disk-a", *frames(1, 1, 8), commit=3)
    bench = PrimaryBench(entry(3, A), store, memory)
    assert store.content() == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6), (3, 7)]
    assert bench.core.commit_index == 7


def test_a_store_that_comes_back_gets_again_what_it_lacks() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.is_store_up = False
    bench.write("lost")
    assert bench.core.commit_index == 1
    bench.lose_store()
    bench.find_store()
    assert bench.store.log_end == bench.core.commit_index == 2


def test_a_store_that_lost_what_it_had_acknowledged_ends_the_reign() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.write("kept")
    bench.lose_store()
    bench.store.frames.pop()
    bench.find_store()
    assert bench.core.stopped
    assert "damaged" in bench.notes()


def test_a_store_that_lacks_what_is_not_kept_in_memory_ends_the_reign() -> None:
    memory = copy_of(*frames(1, 1, 6), commit=6)
    while memory.retained and memory.retained[0].header.last <= 4:
        memory.retained.popleft()
    bench = PrimaryBench(entry(2, A), MemoryStore("disk-a", *frames(1, 1, 2)), memory)
    assert bench.core.stopped


def test_another_disk_than_the_maps_ends_the_reign() -> None:
    assert PrimaryBench(entry(1, A), MemoryStore("other")).core.stopped


def test_a_higher_epoch_at_the_own_store_ends_the_reign() -> None:
    assert PrimaryBench(entry(1, A), MemoryStore("disk-a", epoch=2)).core.stopped


def test_answers_to_another_memory_or_epoch_are_not_heard() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.is_store_up = False
    bench.write("in flight")
    for epoch, incarnation in ((1, "a.1"), (0, "a.0")):
        answer = Appended(SET, Epoch(epoch), Incarnation(incarnation), LogIndex(9))
        bench.feed(StoreSaid(SET, answer))
    assert bench.core.commit_index == 1


def test_a_refusing_store_is_opened_again() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.store.is_failing = True
    bench.write("waits")
    assert bench.core.commit_index == 1
    bench.store.is_failing = False
    bench.pass_ms(1_000)
    assert bench.core.commit_index == 2


def test_a_primary_whose_disk_goes_on_failing_makes_way_for_a_member_in_sync() -> None:
    """R6: otherwise nothing commits, and nobody may be promoted."""
    b = member("b")
    bench = PrimaryBench(entry(1, A, b))
    bench.subscribe(1, b, log_end=1, epochs=((Epoch(1), LogIndex(1)),), is_memory_whole=True)
    bench.store.is_failing = True
    bench.write("waits")
    stopped_ms = 0
    while not bench.core.stopped and bench.ms < 20_000:
        bench.acknowledge(1, b, 2)
        bench.pass_ms(100)
        stopped_ms = bench.ms
    assert 5_000 <= stopped_ms <= 6_500


def test_a_primary_alone_goes_on_trying() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.store.is_failing = True
    bench.write("waits")
    bench.pass_ms(20_000)
    bench.store.is_failing = False
    bench.pass_ms(1_000)
    assert bench.core.commit_index == 2
