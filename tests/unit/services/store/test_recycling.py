"""Files that were segments and are segments again: what they held before is never taken for the log."""

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from lockstep.core.frames import HEADER_BYTES, BadFrame, check_frame, decode_header
from lockstep.core.ids import QueueId, SetName
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Publish
from services.store.core.disk import AnyStep, CreateSegment, DeleteSegments, DiskError, DiskProblem
from services.store.core.journal_format import END, GROUP_HEADER_BYTES, SEGMENT_HEADER_BYTES
from services.store.core.messages import Requested
from services.store.core.meta import decode_snapshot_meta
from services.store.core.owed_keeping import KEPT_MIN
from tests.simulation.disk import SECTOR_BYTES, VirtualFile
from tests.unit.services.store.store_rig import SET, StoreRig, appending, frame
from tests.unit.services.store.test_store_histories import History

FIRST_GROUP = (2 * SECTOR_BYTES - SEGMENT_HEADER_BYTES - GROUP_HEADER_BYTES, SECTOR_BYTES, SECTOR_BYTES)
"""Frames of a segment's first group, in bytes: each but the first has a sector of its own."""
REST = 900
"""Bytes of the frame behind them: one more such group does not fit."""
PER_SEGMENT = len(FIRST_GROUP) + 1


def sized(index: int, wanted: int) -> bytes:
    """A frame of so many bytes."""
    for padding in range(wanted):
        records: list[AnyRecord] = [Publish(None, None, 0, (Message((QueueId(1),), b"", bytes(padding)),))]
        if index == 1:
            records = [DeclareQueue(None, "q" * (padding + 1), True)]
        made = frame(index, records=records)
        if len(made) == wanted:
            return made
    raise AssertionError(f"no frame of {wanted} bytes")


def first_group(begin: int) -> list[bytes]:
    return [sized(begin + place, size) for place, size in enumerate(FIRST_GROUP)]


def fill_segment(rig: StoreRig, begin: int, commit: int) -> int:
    """One segment in two groups; answers the last index."""
    rig.append_ok(*first_group(begin), commit=commit)
    return rig.append_ok(sized(begin + PER_SEGMENT - 1, REST), commit=commit)


def rig_on_stale() -> StoreRig:
    """Segment 1 is consolidated, its file is the third one, which is empty; what is in the second one is acknowledged and not
    committed.
    """
    rig = StoreRig()
    rig.open()
    fill_segment(rig, 1, commit=0)
    fill_segment(rig, 1 + PER_SEGMENT, commit=PER_SEGMENT)
    assert rig.disk.segments_recycled == 1
    assert sorted(rig.disk.directories[SET].segments) == [2, 3]
    assert third(rig).durable[2 * SECTOR_BYTES :].startswith(b"LKSF"), "an old frame"
    return rig


def third(rig: StoreRig) -> VirtualFile:
    return rig.disk.directories[SET].segments[3]


def write_unsynced(rig: StoreRig, *frames: bytes) -> VirtualFile:
    """One group that the third segment has in its cache only."""
    rig.feed(Requested(rig.stream, appending(*frames)))
    while not third(rig).dirty:
        rig.step_journal()
    return third(rig)


ACKNOWLEDGED = 2 * PER_SEGMENT
SEEDS = [seed for seed in range(200) if History(seed).model.owed_lag is not None]
"""Those of histories in which not everything is owed to readers."""


@pytest.mark.parametrize("kept", range(32))
def test_a_torn_group_over_an_old_one_of_the_same_layout_is_cut(kept: int) -> None:
    """Where sectors were lost, whole frames of the old segment stand at the right places."""
    rig = rig_on_stale()
    new = first_group(ACKNOWLEDGED + 1)
    file = write_unsynced(rig, *new)
    dirty = sorted(file.dirty)
    assert len(dirty) == 5
    for place, sector in enumerate(dirty):
        if kept >> place & 1:
            begin = sector * SECTOR_BYTES
            file.durable[begin : begin + SECTOR_BYTES] = file.cached[begin : begin + SECTOR_BYTES]
    file.cached[:] = file.durable
    file.dirty.clear()
    rig.crash()
    opened = rig.open(2)
    whole = (0b11, 0b111, 0b1111)
    expected = ACKNOWLEDGED + sum(kept & needed == needed for needed in whole)
    assert (opened.damage, opened.log_end) == ("", expected)
    for epoch in range(2, 5):
        end = rig.append_ok(frame(opened.log_end + 1, epoch=epoch), epoch=epoch)
        rig.crash()
        opened = rig.open(epoch + 1)
        assert (opened.damage, opened.log_end) == ("", end)
    frames = rig.load(5)[1]
    assert frames[-3 - (expected - ACKNOWLEDGED) : -3] == new[: expected - ACKNOWLEDGED]


def test_a_clean_restart_on_a_recycled_segment_goes_on_in_it() -> None:
    for power in (False, True):
        rig = rig_on_stale()
        rig.append_ok(*first_group(ACKNOWLEDGED + 1))
        end = SEGMENT_HEADER_BYTES + GROUP_HEADER_BYTES + sum(FIRST_GROUP)
        assert third(rig).durable[end : end + len(END)] == END
        rig.crash(power)
        opened = rig.open(2)
        assert (opened.damage, opened.log_end) == ("", ACKNOWLEDGED + len(FIRST_GROUP))
        assert not rig.notes
        rig.append_ok(frame(opened.log_end + 1, epoch=2), epoch=2)
        assert third(rig).durable[end : end + 4] == b"LKSG", "where the end was marked"


def test_a_group_of_which_no_header_was_written_is_written_over() -> None:
    """Its place is used again, without a seal; behind the new group there may be rests of it."""
    rig = rig_on_stale()
    rig.append_ok(*first_group(ACKNOWLEDGED + 1))
    at = ACKNOWLEDGED + len(FIRST_GROUP)
    file = write_unsynced(rig, sized(at + 1, 600), sized(at + 2, 600))
    lost, *rest = sorted(file.dirty)
    for sector in rest:
        begin = sector * SECTOR_BYTES
        file.durable[begin : begin + SECTOR_BYTES] = file.cached[begin : begin + SECTOR_BYTES]
    begin = lost * SECTOR_BYTES
    file.cached[begin : begin + SECTOR_BYTES] = file.durable[begin : begin + SECTOR_BYTES]
    file.dirty.clear()
    rig.crash()
    for epoch in range(2, 5):
        opened = rig.open(epoch)
        assert (opened.damage, opened.log_end, rig.notes) == ("", at, [])
        assert 3 in rig.disk.directories[SET].segments
        at = rig.append_ok(frame(at + 1, epoch=epoch), epoch=epoch)
        rig.crash()


def test_a_missing_end_of_a_segment_is_damage_though_one_group_only_lies_behind_it() -> None:
    """Zeros where the last group's header was look like an end; the next segment's first frame says that there was more."""
    rig = StoreRig()
    rig.open()
    fill_segment(rig, 1, commit=0)
    rig.append_ok(*first_group(1 + PER_SEGMENT))
    file = rig.disk.directories[SET].segments[1]
    at = file.durable.rfind(b"LKSG")
    file.durable[at : at + GROUP_HEADER_BYTES] = END
    file.cached[:] = file.durable
    rig.crash()
    opened = rig.open(2)
    assert opened.damage
    assert opened.log_end == len(FIRST_GROUP)


def test_the_commit_index_in_the_header_of_a_torn_group_is_known() -> None:
    """Zeros in place of an acknowledged group, and a torn one in the next segment: its header says that something is missing."""
    rig = StoreRig()
    rig.open()
    fill_segment(rig, 1, commit=0)
    rig.feed(Requested(rig.stream, appending(*first_group(1 + PER_SEGMENT), commit=PER_SEGMENT)))
    while 2 not in rig.disk.directories[SET].segments:
        rig.step_journal()
    file = rig.disk.directories[SET].segments[2]
    while not file.dirty:
        rig.step_journal()
    file.durable[:SECTOR_BYTES] = file.cached[:SECTOR_BYTES]
    file.cached[:] = file.durable
    file.dirty.clear()
    before = rig.disk.directories[SET].segments[1]
    at = before.durable.rfind(b"LKSG")
    before.durable[at : at + GROUP_HEADER_BYTES] = END
    before.cached[:] = before.durable
    rig.crash()
    assert "was acknowledged" in rig.open(2).damage


@pytest.mark.parametrize("left", [0, 1, GROUP_HEADER_BYTES - 1, GROUP_HEADER_BYTES, GROUP_HEADER_BYTES + 1])
def test_a_segment_that_is_full_to_the_last_bytes_ends_there(left: int) -> None:
    rig = rig_on_stale()
    rig.append_ok(*first_group(ACKNOWLEDGED + 1))
    end = ACKNOWLEDGED + len(FIRST_GROUP)
    used = SEGMENT_HEADER_BYTES + 2 * GROUP_HEADER_BYTES + sum(FIRST_GROUP)
    end = rig.append_ok(sized(end + 1, rig.limits.segment_bytes - used - left))
    assert third(rig).durable[rig.limits.segment_bytes - left :] == END[:left] + bytes(
        max(left - len(END), 0)
    )
    for epoch in range(2, 4):
        rig.crash()
        opened = rig.open(epoch)
        assert (opened.damage, opened.log_end, rig.notes) == ("", end, [])
        end = rig.append_ok(frame(end + 1, epoch=epoch), epoch=epoch)


def test_files_are_kept_within_bounds() -> None:
    rig = rig_on_stale()
    end = ACKNOWLEDGED
    for _ in range(6):
        end = fill_segment(rig, end + 1, commit=end)
        assert len(rig.disk.directories[SET].kept) <= KEPT_MIN
    assert rig.disk.segments_recycled > 5


def test_no_room_is_needed_for_a_file_that_is_kept_and_none_is_kept_when_there_is_little() -> None:
    rig = rig_on_stale()
    kept_max = []
    rig.disk.fault = lambda _, step: (
        kept_max.append(step.kept_max) if isinstance(step, DeleteSegments) else None
    )
    end = fill_segment(rig, ACKNOWLEDGED + 1, commit=0)
    end = fill_segment(rig, end + 1, commit=end)
    assert rig.disk.directories[SET].kept
    assert kept_max == [KEPT_MIN] * 2
    rig.disk.free_bytes, recycled = 1, rig.disk.segments_recycled
    end = fill_segment(rig, end + 1, commit=end)
    assert rig.disk.segments_recycled > recycled
    rig.disk.free_bytes = 0
    end = fill_segment(rig, end + 1, commit=end)
    assert kept_max[-1] == 0
    assert rig.disk.free_bytes > 0


def test_a_failure_while_a_file_is_used_again_loses_nothing() -> None:
    for problem in DiskProblem.FULL, DiskProblem.FAILED:
        rig = rig_on_stale()
        failures = [problem]

        def fail(_: SetName, step: AnyStep, left: list[DiskProblem] = failures) -> None:
            if left and isinstance(step, CreateSegment):
                raise DiskError(left.pop(), "by test", step)

        rig.disk.fault = fail
        end = ACKNOWLEDGED
        for _ in range(4):
            end = fill_segment(rig, end + 1, commit=end)
        assert not failures
        rig.crash()
        opened = rig.open(2)
        assert (opened.damage, opened.log_end) == ("", end)


@dataclass
class Recycled:
    """What the files that are used again hold: whole frames that the durable snapshot does not cover are noted."""

    history: History
    count: int = 0
    uncovered: list[str] = field(default_factory=list)

    def watch(self, _: SetName, step: AnyStep) -> None:
        directory = self.history.rig.disk.directories.get(SET)
        if directory is None or not isinstance(step, CreateSegment):
            return
        file = directory.kept_of(step.size_bytes)
        if file is None:
            return
        self.count += 1
        data, base = bytes(file.cached), decode_snapshot_meta(directory.snapshot.flushed_meta).index
        at = data.find(b"LKSF")
        while at >= 0:
            with contextlib.suppress(BadFrame):
                header = check_frame(data[at : at + decode_header(data[at : at + HEADER_BYTES]).frame_bytes])
                if header.last > base:
                    self.uncovered.append(
                        f"{header.first}..{header.last} in segment {step.number}, {base} is covered"
                    )
            at = data.find(b"LKSF", at + 1)


def test_a_file_with_frames_that_no_snapshot_covers_is_not_used_again() -> None:
    """They were cut, or not synced. Frames of an isolated primary, behind a cut, may have a higher epoch and the same index as
    those that came instead: in a torn group over them they would be taken for these.
    """
    count = 0
    for seed in SEEDS[:25]:
        chance, history = random.Random(seed), History(seed)
        recycled = Recycled(history)
        history.rig.disk.fault = recycled.watch
        for _ in range(14):
            history.append([chance.randint(1, 4) for _ in range(5)], chance.choice((30, 300, 600)), None)
            history.commit(chance.choice((0.5, 0.9, 1.0)), None)
            if chance.random() < 0.3:
                history.truncate(chance.random(), None)
            elif chance.random() < 0.2:
                history.append([2, 2, 2], 300, steps=chance.randint(1, 9))
                history.crash(power=chance.random() < 0.7)
        count += recycled.count
        assert not recycled.uncovered
    assert count > 20


def run_until(rig: StoreRig, count: int) -> bool:
    """Up to the `count`th moment at which a segment is to be created or deleted; whether there was one."""
    while rig.has_jobs:
        if any(isinstance(step, CreateSegment | DeleteSegments) for step in rig.next_steps()):
            count -= 1
            if count <= 0:
                return True
        rig.step()
    return False


def test_no_crash_loses_or_changes_what_was_acknowledged() -> None:
    recycled = interrupted = 0
    for count in range(1, 61):
        chance = random.Random(count)
        history = History(seed=SEEDS[count])
        for _ in range(6):
            history.append([chance.randint(1, 4) for _ in range(5)], chance.choice((300, 600)), None)
            history.commit(1.0, None)
        history.append([3, 1, 2, 4] * 2, chance.choice((300, 600)), steps=0)
        history.commit(0.9, steps=0)
        interrupted += run_until(history.rig, 1 + count % 6)
        history.crash(power=count % 2 == 0)
        history.append([2, 2, 2], 300, steps=chance.randint(1, 20))
        history.crash(power=True)
        history.append([4, 1, 4, 1, 4], 300, None)
        history.commit(1.0, None)
        history.crash(power=count % 3 == 0)
        recycled += history.rig.disk.segments_recycled
    assert recycled > 60
    assert interrupted > 15
