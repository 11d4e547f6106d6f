"""A backup whose disk, or whose primary, has much for it: that becomes memory in pieces, and nobody finds a half of one."""

import gc

import pytest

from lockstep.core.apply_messages import SHARES_AT_ONCE
from lockstep.core.effects import WakeAt
from lockstep.core.frames import BadFrame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import PrimaryStreamClosed, Woken
from lockstep.core.invariants import check_invariants
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import DeclareQueue
from lockstep.core.replication import Frames
from lockstep.core.set_state import SetState
from services.backup.core.backup_memory import BackupState
from services.backup.core.settings import BackupSettings
from tests.unit.lockstep.core.history import Log, message
from tests.unit.lockstep.core.test_clearing import MANY, filled
from tests.unit.services.backup.test_backup_core import accepted, chunk, items_at, log
from tests.unit.services.replicas import SET, BackupBench, MemoryStore, copy_of, frame, frames

SMALL = BackupSettings(piece_cost=1)


def turns(bench: BackupBench, count: int = 1) -> None:
    """So many turns of those that it asks for."""
    for _ in range(count):
        bench.ms += 1
        bench.feed(Woken(SET))


def loaded(store: MemoryStore) -> BackupBench:
    bench = BackupBench(store, settings=SMALL)
    while bench.core.state is BackupState.LOADING:
        assert not bench.core.is_loaded
        turns(bench)
    return bench


def test_a_disk_is_loaded_in_as_many_turns_as_it_needs_and_asked_for_each() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 20), commit=20), settings=SMALL)
    asked = 0
    while bench.core.state is BackupState.LOADING:
        asked += 1
        assert sum(isinstance(effect, WakeAt) for effect in bench.effects) >= 1
        turns(bench)
    assert asked >= 10
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied == 20
    assert bench.subscriptions()[-1].log_end == 20


def test_a_load_that_is_given_up_half_way_leaves_nothing_of_itself() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 20), commit=20)
    bench = BackupBench(store, settings=SMALL)
    turns(bench, 3)
    bench.lose_store()
    bench.find_store()
    turns(bench, 100)
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied == 20
    assert len(bench.subscriptions()) == 1


def test_a_disk_whose_store_is_lost_while_it_is_loaded_is_not_at_hand_before_it_is_opened_again() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 20), commit=20)
    bench = BackupBench(store, settings=SMALL)
    turns(bench, 3)
    bench.lose_store()
    turns(bench, 100)
    found = [(bench.core.state, bench.core.is_loaded, len(bench.subscriptions()))]
    bench.find_store()
    turns(bench, 100)
    found.append((bench.core.state, bench.core.is_loaded, len(bench.subscriptions())))
    assert found == [(BackupState.OPENING, False, 0), (BackupState.SUBSCRIBING, True, 1)]
    assert bench.notes().count("loaded") == 1, "what was loaded is what the disk has still"


def test_what_is_committed_is_applied_in_turns_and_in_order() -> None:
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(3))
    bench.hear(log(4, 30, commit=30))
    assert bench.acknowledged() == 30, "that it is durable is said at once"
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied < 30
    turns(bench, 60)
    assert bench.core.copy.state.applied == 30


def test_a_memory_snapshot_that_is_being_laid_over_is_no_memory() -> None:
    bench = laying_over()
    found = []
    for count in (0, 100):
        turns(bench, count)
        found.append((bench.core.is_loaded, bench.core.can_stand_unrestarted, bench.acknowledged()))
    assert found == [(False, False, 0), (True, True, 4)]


def test_one_whose_stream_ends_meanwhile_is_dropped_and_the_disk_is_loaded_again() -> None:
    bench = laying_over()
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    assert not bench.core.is_loaded
    bench.pass_ms(200)
    turns(bench, 100)
    assert bench.core.copy is not None and bench.core.copy.is_durable_only
    assert not bench.core.copy.state.sessions.by_key
    assert not bench.core.is_memory_whole
    assert bench.subscriptions()[-1].log_end == 4


def test_one_whose_epoch_ends_meanwhile_leaves_no_memory_to_the_next() -> None:
    bench = laying_over()
    bench.core.end()
    assert bench.core.copy is None


def test_a_memory_that_is_dropped_is_taken_apart_and_its_successor_is_not() -> None:
    bench = laying_over()
    dropped = bench.core.copy
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(200)
    turns(bench, 100)
    assert dropped is not None and bench.core.copy is not None
    assert [copy.state.is_taken_apart for copy in (dropped, bench.core.copy)] == [True, False]


def test_the_memory_that_a_whole_snapshot_replaces_is_taken_apart() -> None:
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    replaced = bench.core.copy
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)))
    turns(bench, 100)
    assert replaced is not None and bench.core.copy is not None
    assert [copy.state.is_taken_apart for copy in (replaced, bench.core.copy)] == [True, False]


def test_half_a_snapshot_that_is_void_is_taken_apart() -> None:
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4), is_last=False))
    assert bench.core.memory.joining is not None
    half = bench.core.memory.joining._state
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(200)
    assert half.is_taken_apart


def test_a_role_that_ends_leaves_its_memory_to_the_next_one_or_to_nobody() -> None:
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    copy = bench.core.copy
    assert copy is not None
    bench.perform(bench.core.end())
    assert not copy.state.is_taken_apart
    bench.perform(bench.core.drop_memory())
    assert copy.state.is_taken_apart


def test_frames_behind_a_whole_snapshot_wait_until_it_is_a_memory() -> None:
    bench = BackupBench(MemoryStore("disk-b"), settings=SMALL)
    turns(bench, 5)
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)), log(5, 6))
    ends = [bench.core.copy is not None and bench.core.copy.log_end]
    turns(bench, 100)
    ends.append(bench.core.copy is not None and bench.core.copy.log_end)
    assert ends == [False, 6]
    assert bench.store.log_end == 6
    assert bench.acknowledged() == 6
    assert bench.core.state is BackupState.FOLLOWING


def test_what_is_no_frame_behind_a_whole_snapshot_is_a_fault() -> None:
    bench = BackupBench(MemoryStore("disk-b"), settings=SMALL)
    turns(bench, 5)
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)), log(6, 6))
    with pytest.raises(BadFrame, match="does not follow 4"):
        turns(bench, 100)


def laying_over() -> BackupBench:
    """All of a memory snapshot has come, and only a part of it is laid over."""
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 4), commit=4))
    bench.hear(accepted(4, snapshot_index=4))
    bench.hear(chunk(*(item for item in items_at(4) if not item.is_durable)))
    assert bench.core.memory.is_settling
    return bench


def test_what_one_core_has_not_cleared_when_its_epoch_ends_the_next_one_clears() -> None:
    log = Log()
    filled(log)
    held = len(log.frames)
    for number in range(20):
        log.queue(f"later {number}")
        log.flush()
    copy = copy_of(*log.frames[:held], commit=log.frames[held - 1].header.last)
    bench = BackupBench(MemoryStore("disk-b", *log.frames[:held]), 1, copy, True, settings=SMALL)
    bench.hear(accepted(copy.log_end))
    assert len(copy.state.contents) == MANY
    parts = tuple((frame.durable, frame.transient) for frame in log.frames[held:])
    bench.hear(Frames(SET, Epoch(1), parts, log.frames[-1].header.last))
    turns(bench, 2)
    assert copy.is_behind(copy.commit_index) and copy.state.clearing.queues, "both are under way"
    gc.disable()
    try:
        bench.core.end()
        following = BackupBench(bench.store, 2, copy, True, settings=SMALL)
        bench.core = following.core
        turns(following, 100)
        assert len(copy.state.contents) == 0
    finally:
        gc.enable()


def test_a_frame_of_which_a_part_is_applied_when_a_role_ends_is_gone_on_with_by_the_next_one() -> None:
    bench = loaded(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(3))
    many = frame(1, 4, *[(DeclareQueue(None, f"q{number}", True), True) for number in range(300)])
    bench.hear(Frames(SET, Epoch(1), ((many.durable, many.transient),), LogIndex(303)))
    copy = bench.core.copy
    assert copy is not None and copy.is_amid_frame
    bench.core.end()
    assert copy.is_amid_frame
    turns(BackupBench(bench.store, 2, copy, True, settings=SMALL), 100)
    assert copy.state.applied == 303


def test_bodies_go_behind_a_message_that_is_being_put_into_many_queues_and_not_amid_it() -> None:
    log, limit = Log(), 64 << 10
    queues = tuple(log.queue(f"q{number}") for number in range(SHARES_AT_ONCE + 1))
    log.flush()
    (held,) = log.frames
    copy = LogCopy(SetState(SET), LogIndex(0), 1 << 30, limit)
    copy.append(held)
    copy.commit(held.header.last)
    bench = BackupBench(MemoryStore("disk-b", held), 1, copy, True, settings=SMALL)
    bench.hear(accepted(copy.log_end))
    for _ in range(70):
        log.publish(message(queues[7:8], b"x" * 2048))
    log.publish(message(queues, b"x" * 2048))
    log.flush()
    many = log.frames[-1]
    bench.hear(Frames(SET, Epoch(1), ((many.durable, many.transient),), many.header.last))
    assert copy.state.unfinished is not None
    turns(bench, 100)
    assert not copy.is_amid_frame and copy.state.contents.resident_bytes <= limit
    check_invariants(copy.state)


def test_bodies_that_are_too_many_go_in_turns_that_are_asked_for() -> None:
    log, limit = Log(), 64 << 10
    queue = log.queue("q")
    log.flush()
    (held,) = log.frames
    copy = LogCopy(SetState(SET), LogIndex(0), 1 << 30, limit)
    copy.append(held)
    copy.commit(held.header.last)
    bench = BackupBench(MemoryStore("disk-b", held), 1, copy, True)
    bench.hear(accepted(copy.log_end))
    for _ in range(20):
        log.publish(*[message((queue,), b"x" * 1024)] * 100)
    log.flush()
    many = log.frames[-1]
    bench.hear(Frames(SET, Epoch(1), ((many.durable, many.transient),), many.header.last))
    asked = 0
    while copy.state.contents.resident_bytes > limit or copy.state.applied < many.header.last:
        assert bench.effects[-1] == WakeAt(SET, bench.now.boottime_ms + 1)
        turns(bench)
        asked += 1
    assert asked > 3
    effects = len(bench.effects)
    turns(bench)
    assert len(bench.effects) == effects, "nothing more is to be done"


def test_a_disk_with_more_bodies_than_stay_is_loaded_in_turns_and_leaves_no_more() -> None:
    log, limit = Log(), 64 << 10
    queue = log.queue("q")
    for _ in range(20):
        log.publish(*[message((queue,), b"x" * 1024)] * 100)
    log.flush()
    store = MemoryStore("disk-b", *log.frames, commit=log.frames[-1].header.last)
    bench = BackupBench(store, settings=BackupSettings(resident_body_bytes_max=limit))
    asked = 0
    while bench.core.copy is None:
        turns(bench)
        asked += 1
    assert asked > 3
    assert bench.core.copy.state.contents.resident_bytes <= limit
