"""The primary's own store: what counts as durable there is this log, and no other (R2, R3, history 23)."""

import pytest

from lockstep.core.content import DroppedMessage
from lockstep.core.effects import ReadMessages, TellStore
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, Incarnation, LogIndex, MessageId
from lockstep.core.inputs import MessagesRead, StoreSaid
from lockstep.core.replication import FRAMES_IN_ONE
from lockstep.core.store_protocol import Appended, AppendFrames, OpenSet, StoreRefused
from tests.unit.services.replicas import (
    SET,
    MemoryStore,
    PrimaryBench,
    copy_of,
    entry,
    frames,
    member,
)

A, B = member("a"), member("b")


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


def test_very_many_frames_that_it_lacks_go_in_few_requests_and_what_comes_behind_them() -> None:
    count = 2 * FRAMES_IN_ONE + 1
    bench = PrimaryBench(entry(2, A), MemoryStore("disk-a"), copy_of(*frames(1, 1, count)))
    told = [effect.request for effect in bench.effects if isinstance(effect, TellStore)]
    sent = [len(request.frames) for request in told if isinstance(request, AppendFrames) and request.frames]
    assert sent == [FRAMES_IN_ONE, FRAMES_IN_ONE, 1, 1], "the last is the epoch's record"
    assert bench.core.commit_index == bench.store.log_end == count + 1
    bench.is_store_up = False
    bench.write("lost")
    bench.lose_store()
    bench.write("written meanwhile")
    bench.find_store()
    bench.write("behind")
    assert bench.core.commit_index == bench.store.log_end
    assert [last for _, last in bench.store.content()] == sorted(last for _, last in bench.store.content())


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


def appends(bench: PrimaryBench) -> int:
    """What the own store was told so far, with frames or without."""
    told = [effect.request for effect in bench.effects if isinstance(effect, TellStore)]
    return sum(isinstance(request, AppendFrames) for request in told)


def test_a_set_at_rest_learns_within_a_moment_that_its_store_has_been_fenced() -> None:
    """R2: whoever fenced it may lead by now; and an operator sees that the set stands still."""
    bench = PrimaryBench(entry(1, A))
    bench.pass_ms(3_000)
    assert not bench.core.stopped
    bench.store.highest_epoch = Epoch(50)
    bench.pass_ms(1_500)
    assert "has seen epoch 50" in bench.core.stopped


def test_a_store_that_hears_something_all_the_time_is_told_nothing_beside_it() -> None:
    bench = PrimaryBench(entry(1, A))
    before = appends(bench)
    for number in range(30):
        bench.write(f"record {number}")
        bench.pass_ms(100)
    assert appends(bench) - before <= 61, "the frame, and its commit index"
    before = appends(bench)
    bench.pass_ms(10_000)
    assert 8 <= appends(bench) - before <= 11


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
    bench = with_backup()
    bench.store.is_failing = True
    bench.write("waits")
    assert 5_000 <= stopped_ms(bench, acknowledged=2) <= 6_500


def test_a_primary_whose_disk_fails_amid_what_is_big_makes_way_for_a_member_in_sync() -> None:
    """R6: a disk that takes a piece of it each time has taken nothing."""
    bench = with_backup()
    bench.store.is_failing_amid = True
    bench.write("waits")
    assert 5_000 <= stopped_ms(bench, acknowledged=2) <= 6_500


def test_a_primary_whose_disk_is_full_makes_way_for_a_member_that_has_room() -> None:
    """R6: heartbeats and the lease go on, and nothing commits."""
    bench = with_backup()
    bench.store.is_full = True
    bench.write("waits")
    assert 5_000 <= stopped_ms(bench, acknowledged=2) <= 6_500


@pytest.mark.parametrize("is_full", [True, False])
def test_nobody_makes_way_for_a_member_that_has_not_taken_what_the_own_disk_refuses(is_full: bool) -> None:
    """Otherwise two full disks send the role to and fro."""
    bench = with_backup()
    bench.store.is_full, bench.store.is_failing = is_full, not is_full
    bench.write("waits")
    assert stopped_ms(bench, acknowledged=1) == 20_000 and not bench.core.stopped


def test_a_primary_whose_disk_refused_something_else_for_want_of_room_stays() -> None:
    """Such as the map: it has all of the log, and there may be room for more in its last segment."""
    bench = with_backup()
    refused = StoreRefused(SET, Epoch(1), A.incarnation, ErrorCode.STORE_FULL, "no room", Epoch(1))
    for _ in range(200):
        bench.feed(StoreSaid(SET, refused))
        bench.acknowledge(1, B, 1)
        bench.pass_ms(100)
    assert not bench.core.stopped
    bench.pass_ms(500)
    bench.write("fits")
    bench.acknowledge(1, B, 2)
    assert bench.core.commit_index == 2


def test_a_primary_whose_disk_does_not_read_a_message_makes_way_for_a_member_in_sync() -> None:
    """R6: its queue would stand still for as long as it leads, and the others' disks have the message, too."""
    unread = Unread(with_backup())
    unread.pass_ms(4_900)
    assert not unread.bench.core.stopped
    unread.pass_ms(1_000)
    assert "b is in sync" in unread.bench.core.stopped


def test_a_disk_that_reads_at_last_is_borne_with_anew() -> None:
    bench = with_backup()
    for _ in range(3):
        unread = Unread(bench)
        unread.pass_ms(4_000)
        bench.pass_ms(1_000)
        unread.answer((None,))
        assert not bench.core.stopped and not bench.core.context.read_back.requests(bench.ms)


def test_a_primary_alone_goes_on_reading() -> None:
    unread = Unread(PrimaryBench(entry(1, A)))
    unread.pass_ms(20_000)
    assert not unread.bench.core.stopped


def test_a_primary_alone_goes_on_trying() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.store.is_failing = True
    bench.write("waits")
    bench.pass_ms(20_000)
    bench.store.is_failing = False
    bench.pass_ms(1_000)
    assert bench.core.commit_index == 2


def with_backup() -> PrimaryBench:
    """One that serves, beside a member in sync."""
    bench = PrimaryBench(entry(1, A, B))
    bench.subscribe(1, B, log_end=1, epochs=((Epoch(1), LogIndex(1)),), is_memory_whole=True)
    assert bench.core.is_serving
    return bench


def stopped_ms(bench: PrimaryBench, acknowledged: int) -> int:
    """When it stops, 20 s later at most, while the member says that it has so much."""
    while not bench.core.stopped and bench.ms < 20_000:
        bench.acknowledge(1, B, acknowledged)
        bench.pass_ms(100)
    return bench.ms


class Unread:
    """A body that somebody waits for, and that the own store does not read."""

    def __init__(self, bench: PrimaryBench) -> None:
        self.bench = bench
        self._answered = 0
        dropped = DroppedMessage((), 0, 1, 0, 0, True)
        bench.core.context.read_back.ask(lambda: {MessageId(1): dropped}, lambda found: None)

    def pass_ms(self, ms: int) -> None:
        """The store fails to read it, as often as it is asked."""
        for _ in range(0, ms, 100):
            self.bench.acknowledge(1, B, self.bench.core.log_end)
            self.bench.pass_ms(100)
            self.answer(None)

    def answer(self, contents: tuple[None] | None) -> None:
        """The store's answer to what it was asked last, if it was not answered."""
        asked = [effect.request for effect in self.bench.effects if isinstance(effect, ReadMessages)]
        if len(asked) > self._answered:
            self._answered = len(asked)
            self.bench.feed(MessagesRead(SET, asked[-1], contents))


TAKEN_FOR_NONE = StoreRefused(
    SET, Epoch(1), A.incarnation, ErrorCode.INVALID_ARGUMENT, "frame 3..3 has a wrong checksum", Epoch(1)
)


def test_a_primary_whose_memory_of_the_log_is_none_to_its_store_ends_and_not_at_once() -> None:
    """It would be sent the same for ever, and nothing be committed; on the way to the store it may have been once."""
    bench = PrimaryBench(entry(1, A))
    for _ in range(2):
        bench.feed(StoreSaid(SET, TAKEN_FOR_NONE))
        assert not bench.core.stopped
        bench.pass_ms(2_000)
        bench.write(f"q{bench.ms}")
    bench.feed(StoreSaid(SET, TAKEN_FOR_NONE))
    bench.is_store_up = False
    bench.write("lost")
    bench.pass_ms(1_000)
    opened = [each.request for each in bench.effects if isinstance(each, TellStore)][-1]
    assert isinstance(opened, OpenSet)
    for answer in bench.store.handle(opened):
        bench.feed(StoreSaid(SET, answer))
    assert not bench.core.stopped
    bench.feed(StoreSaid(SET, TAKEN_FOR_NONE))
    assert "for no frames: frame 3..3 has a wrong checksum" in bench.core.stopped


def test_a_store_that_refuses_all_that_was_on_its_way_has_been_sent_it_once() -> None:
    bench = PrimaryBench(entry(1, A))
    for _ in range(2):
        bench.feed(StoreSaid(SET, TAKEN_FOR_NONE))
    assert not bench.core.stopped
