"""When the consolidator goes on: a burst is journalled first, and what waits for it is bounded (DESIGN 5)."""

from dataclasses import replace

import pytest

from lockstep.core.ids import Epoch, QueueId, SetName
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Publish
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import LoadState
from services.store.core.disk import (
    AnyStep,
    Compute,
    DiskError,
    DiskProblem,
    Lane,
    ReadSnapshotItems,
    SnapshotWrite,
    StepResult,
)
from services.store.core.limits import KIB
from services.store.core.messages import Requested, Stop, Tick
from services.store.core.snapshot_changes import SnapshotChanges
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame

LIMITS = replace(
    SMALL,
    segment_bytes=1024 * KIB,
    unconsolidated_bytes=64 * KIB,
    unconsolidated_quiet_bytes=8 * KIB,
    unconsolidated_ticks=3,
)
MUCH = 20
"""Frames: more than `unconsolidated_quiet_bytes`, and many more may lie behind before it goes on at once."""
BODY = bytes(500)


class Log:
    """A set whose every record publishes a message, in a frame of its own; committed as soon as it is there."""

    def __init__(self, **limits: int) -> None:
        self.rig = StoreRig(replace(LIMITS, **limits))
        self.rig.open()
        self.end = 0
        self.grow(1)

    def grow(self, count: int, commit: int | None = None) -> None:
        for _ in range(count):
            data = self.next_frame()
            self.rig.append_ok(data, commit=self.end if commit is None else commit)

    def next_frame(self) -> bytes:
        self.end += 1
        records: list[AnyRecord] = [
            Publish(None, None, 0, (Message((QueueId(1),), b"", BODY, is_durable=True),))
            if self.end > 1
            else DeclareQueue(None, "q", True)
        ]
        return frame(self.end, records=records)

    def tick(self) -> None:
        self.rig.feed(Tick())
        self.rig.run()

    @property
    def written(self) -> int:
        """Index of the snapshot."""
        return self.rig.core.status()[0].snapshot_index

    @property
    def is_followed(self) -> bool:
        """All is applied; less than what makes a write may be left to be written."""
        return self.end - self.written < LIMITS.batch_items_max


def test_a_busy_store_with_little_behind_does_nothing() -> None:
    log = Log()
    for _ in range(10):
        log.grow(1)
        log.tick()
    assert log.written == 0


def test_a_quiet_store_with_little_behind_does_nothing() -> None:
    log = Log()
    log.grow(5)
    for _ in range(10):
        log.tick()
    assert log.written == 0


def test_a_burst_is_consolidated_in_the_first_quiet_tick() -> None:
    log = Log()
    log.grow(MUCH)
    log.tick()
    assert log.written == 0, "something was appended since the last tick"
    log.tick()
    assert log.is_followed


def test_a_quiet_tick_before_a_burst_says_nothing_of_it() -> None:
    log = Log()
    log.tick()
    log.tick()
    log.grow(MUCH)
    assert log.written == 0


def test_an_append_that_takes_long_is_no_quiet_time() -> None:
    log = Log(unconsolidated_ticks=1_000)
    log.grow(MUCH)
    log.tick()
    log.rig.feed(Requested(log.rig.stream, appending(log.next_frame(), commit=log.end)))
    for _ in range(2):
        log.rig.feed(Tick())
        log.rig.run_but(Lane.JOURNAL)
    assert log.written == 0
    log.rig.run()
    log.tick()
    log.tick()
    assert log.is_followed


def test_a_busy_store_consolidates_after_some_ticks_and_then_waits_for_as_many() -> None:
    log, went_on = Log(), []
    for number in range(1, 10):
        log.grow(MUCH)
        before = log.written
        log.tick()
        assert log.written == before or log.is_followed
        if log.written > before:
            went_on.append(number)
    assert went_on == [3, 6, 9]


def test_ticks_with_little_behind_do_not_count() -> None:
    log = Log()
    for _ in range(5):
        log.grow(2)
        log.tick()
    for _ in range(2):
        log.grow(MUCH)
        log.tick()
    assert log.written == 0


def test_many_bytes_behind_wait_for_no_tick() -> None:
    log = Log()
    frame_bytes = LIMITS.unconsolidated_quiet_bytes // (MUCH - 5)
    while log.written == 0:
        log.grow(1)
        assert log.end < 2 * LIMITS.unconsolidated_bytes // frame_bytes
    assert log.end * len(BODY) > LIMITS.unconsolidated_bytes * 3 // 4
    assert log.is_followed


def test_ticks_of_a_burst_do_not_count() -> None:
    log = Log(burst_bytes=4 * KIB)
    while (log.end + MUCH) * len(BODY) < LIMITS.unconsolidated_bytes * 3 // 4:
        log.grow(MUCH)
        log.tick()
    assert log.end > 2 * LIMITS.unconsolidated_ticks
    assert log.written == 0


def test_ticks_behind_a_burst_count_though_it_is_never_quiet() -> None:
    log = Log(burst_bytes=4 * KIB)
    log.grow(MUCH)
    log.tick()
    for number in range(LIMITS.unconsolidated_ticks):
        assert log.written == 0, number
        log.grow(1)
        log.tick()
    assert log.is_followed


def test_a_tick_that_brings_much_counts_less_than_one_that_does_not() -> None:
    log, went_on = Log(dense_bytes=4 * KIB, dense_ticks=2, unconsolidated_bytes=1024 * KIB), []
    for number in range(1, 12):
        log.grow(1 if number == 2 else MUCH)
        before = log.written
        log.tick()
        if log.written > before:
            went_on.append(number)
    assert went_on == [5, 11], "four dense ones and one that counts twice, then six dense ones"


def test_some_small_segments_behind_wait_for_no_tick() -> None:
    log = Log(segment_bytes=4 * KIB)
    while log.written == 0:
        bytes_behind = log.end * len(BODY)
        log.grow(1)
    most = LIMITS.unconsolidated_segments * 4 * KIB
    assert most * 3 // 4 < bytes_behind <= most
    assert len(log.rig.disk.directories[SET].kept) <= LIMITS.unconsolidated_segments


@pytest.mark.parametrize(("free_kib", "most_kib"), [(32, 16), (4 * 32, 32), (4 * 500, 64)])
def test_where_there_is_little_room_less_waits(free_kib: int, most_kib: int) -> None:
    """Never less than a segment's worth: so much has to be written before any can go."""
    log = Log(segment_bytes=16 * KIB)
    log.rig.disk.free_bytes = free_kib * KIB
    begin = log.end
    while log.written == 0:
        bytes_behind = (log.end - begin) * len(BODY)
        log.grow(1)
        log.rig.disk.free_bytes = free_kib * KIB
    assert most_kib * KIB * 3 // 4 < bytes_behind <= most_kib * KIB


def test_the_segments_of_a_burst_are_kept_for_the_next_one() -> None:
    log = Log(segment_bytes=16 * KIB)
    while log.written == 0:
        log.grow(1)
    assert len(log.rig.disk.directories[SET].kept) == LIMITS.unconsolidated_bytes // (16 * KIB)


def test_what_is_kept_goes_where_brokers_would_soon_stop_publishing() -> None:
    log = Log(segment_bytes=16 * KIB, reserve_bytes=64 * KIB)
    while log.written == 0:
        log.grow(1)
    kept = len(log.rig.disk.directories[SET].kept)
    assert kept
    log.rig.disk.free_bytes = 2 * 64 * KIB - 1
    log.grow(1)
    assert log.rig.disk.free_bytes == 2 * 64 * KIB - 1 + kept * 16 * KIB


def test_a_closed_segment_that_is_applied_but_for_its_end_waits_as_all_does() -> None:
    """It would have to be made durable in the middle of a burst, for nothing."""
    log = Log(segment_bytes=64 * KIB)
    while log.end * len(BODY) < 50 * KIB:
        log.grow(1)
    log.tick()
    log.tick()
    flushes = log.rig.log.count("SnapshotFlush")
    while log.end * len(BODY) < 70 * KIB:
        log.grow(1)
    (status,) = log.rig.core.status()
    assert status.journal_bytes > log.rig.limits.segment_bytes, "a second segment has begun"
    assert log.rig.log.count("SnapshotFlush") == flushes
    log.tick()
    log.tick()
    (status,) = log.rig.core.status()
    assert status.journal_bytes == log.rig.limits.segment_bytes, "the first one is gone"
    assert log.is_followed


def test_what_is_not_committed_is_not_behind() -> None:
    """R11."""
    log = Log()
    log.grow(MUCH, commit=3)
    for _ in range(5):
        log.tick()
    assert log.written == 0


def test_what_a_reader_of_everything_interrupts_goes_on_behind_it() -> None:
    log = Log()
    log.grow(MUCH)
    log.tick()
    log.rig.feed(Tick())
    while not any(isinstance(step, SnapshotWrite) for step in log.rig.next_steps()):
        log.rig.step()
    log.rig.feed(Requested(log.rig.stream, LoadState(SET, Epoch(1), ME)))
    log.rig.run()
    assert log.is_followed
    assert not log.rig.has_jobs


def test_a_failed_write_is_tried_again_with_the_next_tick() -> None:
    log = Log()
    failing = True

    def fail(_set_name: SetName, step: AnyStep) -> None:
        if failing and isinstance(step, SnapshotWrite):
            raise DiskError(DiskProblem.FAILED, "no")

    log.rig.disk.fault = fail
    log.grow(MUCH)
    for _ in range(3):
        log.tick()
    assert log.written == 0
    failing = False
    log.tick()
    assert log.is_followed


def state_of(log: Log) -> SetState | None:
    return log.rig.core._sets[SET].consolidator._state


def test_a_state_that_is_given_up_is_taken_apart_in_the_snapshot_lane() -> None:
    """Whether it failed to be written or to be loaded."""
    log, states, was_taken_apart = (
        Log(unflushed_quiet_items_max=1),
        list[SetState](),
        set[tuple[int, bool]](),
    )
    log.grow(MUCH)
    for _ in range(3):
        log.tick()
    assert log.written == log.end

    def fail(_set_name: SetName, step: AnyStep) -> None:
        state = state_of(log)
        if state is not None and state not in states:
            states.append(state)
        if isinstance(step, Compute):
            was_taken_apart.update((place, one.is_taken_apart) for place, one in enumerate(states))
        if isinstance(step, (SnapshotWrite, ReadSnapshotItems)[len(states) - 1 :][:1]):
            raise DiskError(DiskProblem.FAILED, "no")

    log.rig.disk.fault = fail
    log.grow(MUCH)
    for _ in range(5):
        log.tick()
    assert [state.is_taken_apart for state in states] == [True, True, False]
    assert not (states[0].queues.by_id or states[1].queues.by_id)
    assert was_taken_apart >= {(0, False), (0, True), (1, False), (1, True)}, "by steps of that lane"
    assert state_of(log) is states[2] and log.is_followed


def test_what_another_lane_gives_up_is_not_gone_on_with() -> None:
    """The step that is under way ends, and the next one is not begun."""
    log = Log()
    log.grow(MUCH)
    log.tick()
    log.rig.feed(Tick())
    while (state := state_of(log)) is None or not log.rig.has_jobs:
        log.rig.step()
    log.rig.core._sets[SET].consolidator.give_up()
    log.rig.run()
    assert state.is_taken_apart and log.written == 0
    log.tick()
    assert log.is_followed


def test_a_set_that_is_opened_again_is_consolidated_once_it_is_quiet() -> None:
    log = Log()
    log.grow(MUCH)
    log.rig.crash(power=False)
    log.rig.open(2)
    assert log.written == 0, "whoever opened it wants to load it first"
    log.rig.tell_commit(log.end, epoch=2)
    log.tick()
    assert log.is_followed


def test_when_all_is_applied_ticks_do_nothing() -> None:
    log = Log(unflushed_quiet_items_max=1)
    log.grow(MUCH)
    for _ in range(3):
        log.tick()
    assert log.written == log.end
    steps = len(log.rig.log)
    for _ in range(5):
        log.tick()
    assert log.rig.log[steps:] == []


def test_a_store_that_stops_begins_nothing_long() -> None:
    log = Log()
    log.grow(MUCH)
    log.rig.feed(Stop())
    log.rig.run()
    assert log.written == 0


def test_what_a_long_catch_up_has_not_flushed_is_bounded() -> None:
    log = Log(unflushed_items_max=20, unflushed_fraction=1_000_000)
    log.grow(MUCH)
    log.tick()
    flushes = log.rig.log.count("SnapshotFlush")
    log.tick()
    assert log.rig.log.count("SnapshotFlush") - flushes > 1
    log.rig.crash()
    assert log.end - log.rig.open(2).snapshot_index < 20


def rests(log: Log) -> list[float]:
    """What the consolidator's computations are told from now on, in order; to be read when they are done."""
    found: list[float] = []
    perform = log.rig.disk.perform

    def look_on(set_name: SetName, step: AnyStep) -> StepResult:
        if isinstance(step, Compute):
            found.append(step.rest)
        return perform(set_name, step)

    log.rig.disk.perform = look_on  # type: ignore[method-assign]
    return found


def test_it_rests_while_others_append() -> None:
    log = Log()
    for _ in range(LIMITS.unconsolidated_ticks - 1):
        log.grow(MUCH)
        log.tick()
    log.grow(MUCH)
    found = rests(log)
    log.rig.feed(Tick())
    log.rig.feed(Requested(log.rig.stream, appending(log.next_frame(), commit=log.end)))
    log.rig.run_but(Lane.SNAPSHOT)
    log.rig.run()
    assert log.is_followed
    assert found and set(found[1:]) == {LIMITS.consolidator_rest}


def test_it_does_not_rest_when_nobody_appends() -> None:
    log = Log()
    log.grow(MUCH)
    log.tick()
    found = rests(log)
    log.tick()
    assert log.is_followed
    assert found and set(found) == {0.0}


def test_it_rests_the_less_the_more_lies_behind_it() -> None:
    log = Log()
    frame_bytes = len(log.next_frame())
    log.end -= 1
    found = rests(log)
    log.grow(3 * LIMITS.unconsolidated_bytes // frame_bytes, commit=1)
    assert log.written == 0
    log.grow(1)
    assert log.is_followed
    assert found[0] == 0.0
    assert found[-1] == LIMITS.consolidator_rest
    assert found == sorted(found)
    assert any(0.0 < rest < LIMITS.consolidator_rest for rest in found)


def test_a_tick_looks_at_nothing_that_a_computation_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes' threads compute while the core goes on: a tick that counted what was being changed ended the process."""
    log, computations = Log(), 0
    count, perform = SnapshotChanges.__len__, log.rig.disk.perform
    is_computing = False

    def counted(changes: SnapshotChanges) -> int:
        assert not is_computing, "a computation is changing this"
        return count(changes)

    def ticking(set_name: SetName, step: AnyStep) -> StepResult:
        nonlocal is_computing, computations
        result = perform(set_name, step)
        if isinstance(step, Compute):
            computations, is_computing = computations + 1, True
            log.rig.feed(Tick())
            is_computing = False
        return result

    monkeypatch.setattr(SnapshotChanges, "__len__", counted)
    monkeypatch.setattr(log.rig.disk, "perform", ticking)
    log.grow(MUCH)
    log.tick()
    log.tick()
    assert computations and log.is_followed
