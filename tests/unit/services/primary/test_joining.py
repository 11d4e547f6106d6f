"""How a replica joins: who is guarded and swapped in, and when (R8, R12, histories 18 and 24)."""

import pytest

from lockstep.core.effects import CloseBackupStream
from lockstep.core.frames import check_frame
from lockstep.core.ids import Epoch, LogIndex, SessionKey
from lockstep.core.inputs import BackupSaid, BackupStreamClosed, SwapAnswered, Tick, Verdict
from lockstep.core.item_blocks import is_block
from lockstep.core.items import ENTRY, MESSAGE
from lockstep.core.records import DeclareQueue, OpenSession
from lockstep.core.replication import (
    FRAMES_IN_ONE,
    Frames,
    Refuse,
    SnapshotChunk,
    SubscriptionAccepted,
    SubscriptionRefused,
    ToBackup,
)
from services.primary.core.backups import SNAPSHOT_BLOCK_BYTES, SNAPSHOT_TURN_CHUNKS
from services.primary.core.settings import PrimarySettings
from services.primary.core.transacting import append_begin
from tests.unit.lockstep.core.history import Log, message
from tests.unit.services.replicas import (
    SET,
    MemoryStore,
    PrimaryBench,
    copy_of,
    entry,
    frames,
    member,
)

A, B, C = member("a"), member("b"), member("c")
B1 = member("b", 1)
EPOCH_1 = ((Epoch(1), LogIndex(1)),)


def accepted(told: list[ToBackup]) -> SubscriptionAccepted:
    (found,) = [message for message in told if isinstance(message, SubscriptionAccepted)]
    return found


def test_a_restarted_member_whose_log_is_complete_is_not_in_sync_before_it_has_the_memory_snapshot() -> None:
    bench = PrimaryBench(entry(1, A, B))
    told = bench.subscribe(1, B1, log_end=1, epochs=EPOCH_1)
    assert accepted(told).snapshot_index == accepted(told).agreed == 1
    assert isinstance(told[-1], SnapshotChunk)
    bench.acknowledge(1, B1, 0)
    assert bench.swaps() == []
    bench.acknowledge(1, B1, 1)
    (swap,) = bench.swaps()
    assert swap.set_map.in_sync == (A, B1)


@pytest.mark.parametrize(("log_end", "is_snapshot_needed"), [(3, True), (5, False)])
def test_frames_from_before_the_primarys_own_memory_snapshot_make_nobodys_memory_whole(
    log_end: int, is_snapshot_needed: bool
) -> None:
    """R12: it joined by one at 5, from its disk, and its frames up to there are without what is not durable."""
    held = frames(1, 1, 6)
    copy = copy_of(*held, commit=6)
    copy.transients_from = LogIndex(5)
    bench = PrimaryBench(entry(2, A), MemoryStore("disk-a", *held, commit=6), copy)
    told = bench.subscribe(
        1, B, log_end=log_end, epochs=EPOCH_1, commit_index=3, is_memory_whole=True, applied=3
    )
    assert (accepted(told).snapshot_index > 0) is is_snapshot_needed


def test_a_member_that_kept_its_memory_goes_on_with_the_log_alone() -> None:
    bench = PrimaryBench(entry(1, A, B))
    told = bench.subscribe(1, B, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    assert accepted(told).snapshot_index == 0
    assert bench.core.commit_index == 1
    assert bench.swaps() == []


def test_an_empty_disk_gets_everything_and_counts_when_it_is_installed() -> None:
    bench = PrimaryBench(entry(1, A), settings=PrimarySettings(retained_bytes_max=0))
    bench.write("content")
    told = bench.subscribe(1, B)
    assert accepted(told).is_snapshot_whole
    assert accepted(told).snapshot_index == 2
    bench.acknowledge(1, B, 0)
    assert bench.swaps() == []
    bench.acknowledge(1, B, 2)
    assert bench.swaps()[-1].set_map.in_sync == (A, B)


def with_a_learner(guard_lag: int, min_in_sync: int = 1) -> PrimaryBench:
    """A primary alone, and a learner that has joined and is more than `guard_lag` behind."""
    bench = PrimaryBench(entry(1, A, min_in_sync=min_in_sync), settings=PrimarySettings(guard_lag=guard_lag))
    bench.subscribe(1, B, log_end=1, epochs=EPOCH_1)
    write_many(bench, 2 * guard_lag)
    bench.pass_ms(200)
    bench.acknowledge(1, B, 1)
    assert not bench.core.membership.guards
    return bench


def write_many(bench: PrimaryBench, records: int) -> LogIndex:
    """In one frame; returns where it began."""
    log = bench.core.context.writer.log
    before = log.end
    for number in range(records):
        bench.core.context.writer.append(DeclareQueue(None, f"q{before}.{number}", True), True)
    bench.pass_ms(50)
    assert log.framed_end == log.end == before + records
    return before


@pytest.mark.parametrize(("acknowledged", "state"), [(1, "OPEN"), (11, "ROLLED_BACK")])
def test_a_learner_has_no_vote_before_it_is_guarded(acknowledged: int, state: str) -> None:
    """R4: what it says counts for nothing."""
    bench = with_a_learner(guard_lag=10)
    context = bench.core.context
    session = SessionKey(context.writer.append(OpenSession(None, "session", 60_000), False))
    append_begin(context, session, None, 0)
    key = (context.writer.log.end, bench.core.epoch)
    bench.acknowledge(1, B, acknowledged)
    bench.feed(BackupSaid(SET, 1, Refuse(SET, Epoch(1), B.broker, B.incarnation, key, "no room")))
    assert context.state.outcome(key).state.name == state


@pytest.mark.parametrize("records", [5, 50, 500])
def test_a_learner_is_guarded_however_much_is_under_way_to_everybody(records: int) -> None:
    """All that clients may have under way is committed, answered and there again before the learner has the last of it."""
    bench = with_a_learner(guard_lag=10)
    bench.acknowledge(1, B, write_many(bench, records))
    assert list(bench.core.membership.guards) == [B]


def test_a_learner_that_is_behind_by_more_than_a_moment_is_not_guarded() -> None:
    bench = with_a_learner(guard_lag=10)
    lag = [write_many(bench, 50) for _ in range(5)]
    for _ in range(10):
        bench.acknowledge(1, B, lag.pop(0))
        assert not bench.core.membership.guards
        lag.append(write_many(bench, 50))


def test_a_learner_is_measured_by_all_that_waits_while_nothing_can_be_committed() -> None:
    bench = with_a_learner(guard_lag=10, min_in_sync=2)
    end = bench.core.log_end
    bench.acknowledge(1, B, end - 11)
    assert bench.core.commit_index == 0 and not bench.core.membership.guards
    bench.acknowledge(1, B, end - 10)
    assert list(bench.core.membership.guards) == [B]


def bench_with_messages(records: int, each: int, settings: PrimarySettings) -> PrimaryBench:
    """A primary without retained frames, with a queue of so many records of so many messages each."""
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for _ in range(records):
        log.publish(*(message((queue,)) for _ in range(each)))
    log.flush()
    copy = copy_of(*log.frames, commit=log.frames[-1].header.last)
    return PrimaryBench(entry(2, A), MemoryStore("disk-a", *log.frames), copy, settings=settings)


@pytest.mark.parametrize("takes_blocks", [False, True])
def test_a_newcomer_gets_blocks_if_it_takes_them(takes_blocks: bool) -> None:
    """Older brokers know single items alone."""
    bench = bench_with_messages(1, 10, PrimarySettings(retained_bytes_max=0))
    told = bench.subscribe(1, B, takes_blocks=takes_blocks)
    assert accepted(told).is_snapshot_whole
    items = [item for chunk in told if isinstance(chunk, SnapshotChunk) for item in chunk.items]
    of_messages = [is_block(item.key) for item in items if item.key[:1] in (ENTRY, MESSAGE)]
    assert of_messages == ([True] * 2 if takes_blocks else [False] * 20)


def test_a_part_of_a_snapshot_has_few_blocks_however_small_they_are() -> None:
    settings = PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=4 * SNAPSHOT_BLOCK_BYTES)
    bench = bench_with_messages(10, 128, settings)
    told = bench.subscribe(1, B, takes_blocks=True)
    chunks = [chunk.items for chunk in told if isinstance(chunk, SnapshotChunk)]
    assert [sum(is_block(item.key) for item in items) for items in chunks] == [4] * SNAPSHOT_TURN_CHUNKS


def parts(told: list[ToBackup]) -> int:
    return len([message for message in told if isinstance(message, SnapshotChunk)])


def test_parts_of_a_whole_snapshot_follow_acknowledgements_and_wait_for_a_tick_only_without_them() -> None:
    bench = PrimaryBench(entry(1, A), settings=PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=1))
    for number in range(20):
        bench.write(f"q{number}")
    counts = [parts(bench.subscribe(1, B))]
    for _ in range(3):
        bench.acknowledge(1, B, 0)
        counts.append(parts(bench.told(1)))
    for _ in range(2):
        bench.feed(Tick(SET))
        counts.append(parts(bench.told(1)))
    assert counts == [4, 5, 6, 7, 7, 11]


def test_a_part_of_a_snapshot_has_few_items_however_small_they_are() -> None:
    bench = PrimaryBench(
        entry(1, A), settings=PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=1024)
    )
    for number in range(20):
        bench.write(f"q{number}")
    chunks = [message for message in bench.subscribe(1, B) if isinstance(message, SnapshotChunk)]
    assert {len(chunk.items) for chunk in chunks} == {4}


def test_a_guard_ends_with_its_stream_when_the_same_broker_subscribes_anew() -> None:
    bench = PrimaryBench(entry(1, A))
    bench.subscribe(1, B)
    bench.acknowledge(1, B, 1)
    bench.feed(SwapAnswered(SET, bench.swaps()[-1].request, Verdict.FAILED, 0))
    assert B in bench.core.membership.guards
    bench.subscribe(2, B1, log_end=1, epochs=EPOCH_1)
    bench.feed(BackupStreamClosed(SET, 1))
    assert list(bench.core.membership.guards) == []
    index = bench.write("is not held up")
    assert bench.core.commit_index == index


def test_whoever_holds_content_that_it_cannot_cut_comes_in_when_all_others_have_it_too() -> None:
    """B installed a snapshot at 5 from a primary that was deposed; C, in sync, ends at 3; A, the new primary, has all five."""
    held = frames(1, 1, 5)
    bench = PrimaryBench(entry(2, A, C), MemoryStore("disk-a", *held), copy_of(*held, commit=3))
    bench.subscribe(1, B, log_end=5, epochs=EPOCH_1, commit_index=5, is_memory_whole=True, applied=5)
    bench.acknowledge(1, B, 6)
    assert bench.swaps() == []
    bench.subscribe(2, C, log_end=3, epochs=EPOCH_1, commit_index=3, is_memory_whole=True, applied=3)
    bench.acknowledge(2, C, 4)
    assert bench.swaps() == []
    bench.acknowledge(2, C, 6)
    assert bench.swaps()[-1].set_map.in_sync == (A, B, C)


def test_a_member_that_knows_of_a_commit_where_this_log_has_something_else_ends_the_reign() -> None:
    """R10: this log lacks what was committed, although it is longer."""
    held = [*frames(1, 1, 3), *frames(2, 4, 8)]
    bench = PrimaryBench(entry(4, A, B), MemoryStore("disk-a", *held), copy_of(*held, commit=3))
    bench.subscribe(
        1,
        B,
        log_end=6,
        epochs=(*EPOCH_1, (Epoch(3), LogIndex(4))),
        commit_index=5,
        is_memory_whole=True,
        applied=5,
    )
    assert bench.core.stopped
    assert "damaged" in bench.notes()


@pytest.mark.parametrize("applied", [9, 3])
def test_a_learner_that_knows_of_other_commits_gets_everything_anew(applied: int) -> None:
    """Also one that has not come to them yet: it would apply what this log has there before it is committed (R11)."""
    bench = PrimaryBench(entry(2, A), MemoryStore("disk-a", *frames(1, 1, 3)), copy_of(*frames(1, 1, 3)))
    told = bench.subscribe(
        1, B, log_end=9, epochs=EPOCH_1, commit_index=9, is_memory_whole=True, applied=applied
    )
    assert accepted(told).is_snapshot_whole
    assert not bench.core.stopped


def test_a_suffix_of_another_epoch_is_cut_where_the_logs_part() -> None:
    held = [*frames(1, 1, 3), *frames(3, 4, 5)]
    bench = PrimaryBench(entry(4, A, B), MemoryStore("disk-a", *held), copy_of(*held, commit=2))
    told = bench.subscribe(
        1,
        B,
        log_end=7,
        epochs=(*EPOCH_1, (Epoch(2), LogIndex(4))),
        commit_index=3,
        is_memory_whole=True,
        applied=3,
    )
    assert accepted(told).agreed == 3
    (log,) = [message for message in told if isinstance(message, Frames)]
    assert len(log.frames) == 3
    assert bench.core.membership.durable[B] == 3


def test_a_named_disk_that_lacks_what_is_committed_is_told_so() -> None:
    """R10: everything committed was acknowledged on every disk that the map names."""
    held = copy_of(*frames(1, 1, 4), commit=4)
    bench = PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *frames(1, 1, 4)), held)
    (refused,) = bench.subscribe(1, B1, log_end=2, epochs=EPOCH_1)
    assert isinstance(refused, SubscriptionRefused)
    assert refused.missing_from == 3
    assert CloseBackupStream(SET, 1) in bench.effects


def test_a_named_disk_is_never_given_a_whole_snapshot() -> None:
    """History 24: a volume that came back empty is no member; the disk that the map names is."""
    settings = PrimarySettings(retained_bytes_max=0)
    held = copy_of(*frames(1, 1, 4), commit=4)
    held.retained.clear()
    bench = PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *frames(1, 1, 4)), held, settings=settings)
    told = bench.subscribe(1, B1, log_end=2, epochs=EPOCH_1)
    assert isinstance(told[0], SubscriptionRefused)
    assert CloseBackupStream(SET, 1) in bench.effects
    empty = member("b", 2)
    other = type(empty)(empty.broker, type(empty.disk)("new-disk"), empty.incarnation)
    assert accepted(bench.subscribe(2, other)).is_snapshot_whole


def test_frames_behind_the_commit_index_are_kept_through_a_promotion_whatever_their_size() -> None:
    """A member of the set may lack any of them, and a named disk gets nothing but frames."""
    copy = copy_of()
    copy._retained_bytes_max = 1
    for each in frames(1, 1, 6):
        copy.append(each)
    copy.commit(LogIndex(2))
    bench = PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *frames(1, 1, 6)), copy)
    told = bench.subscribe(1, B, log_end=2, epochs=EPOCH_1, commit_index=2, is_memory_whole=True, applied=2)
    assert accepted(told).agreed == 2


def test_a_member_that_lacks_many_frames_gets_them_in_order_some_in_each_message() -> None:
    many = 2 * FRAMES_IN_ONE + 1
    copy = copy_of(*frames(1, 1, many))
    copy.commit(LogIndex(2))
    bench = PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *frames(1, 1, many)), copy)
    told = bench.subscribe(1, B, log_end=2, epochs=EPOCH_1, commit_index=2, is_memory_whole=True, applied=2)
    sent = [message.frames for message in told if isinstance(message, Frames)]
    assert [len(some) for some in sent] == [FRAMES_IN_ONE, FRAMES_IN_ONE]
    indexes = [check_frame(durable).first for some in sent for durable, _ in some]
    assert indexes == list(range(3, bench.core.log_end + 1))


def test_two_restarted_members_of_a_set_that_may_lose_nobody_come_in_one_swap() -> None:
    bench = PrimaryBench(entry(2, A, B, C, min_in_sync=3), copy=copy_of(), is_restarted=True)
    c1 = member("c", 1)
    for stream, who in ((1, B1), (2, c1)):
        bench.subscribe(stream, who)
    for stream, who in ((1, B1), (2, c1)):
        bench.acknowledge(stream, who, 1)
    assert [swap.set_map.in_sync for swap in bench.swaps()] == [(A, B1, c1)]
    bench.feed(SwapAnswered(SET, bench.swaps()[-1].request, Verdict.DONE, 11))
    assert bench.core.commit_index == 1
