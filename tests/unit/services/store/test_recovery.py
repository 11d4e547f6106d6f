"""Torn or damaged: what a recovery makes of bad bytes (DESIGN R10), and of cuts."""

from dataclasses import replace

import msgspec.structs
import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import DiskId, Epoch, LogIndex, QueueId, SetName
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Publish
from lockstep.core.store_protocol import (
    AcceptDamage,
    Appended,
    OpenSet,
    SetAside,
    SetOpened,
    StoreRefused,
    Truncate,
    Truncated,
)
from services.store.core.disk import DiskError, DiskProblem, Step, SyncSegment, WriteMeta
from services.store.core.journal_format import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    encode_group_header,
    salt_of,
)
from services.store.core.limits import StoreLimits
from services.store.core.messages import Requested, Tick
from services.store.core.meta import Seal, decode_set_meta, encode_meta
from services.store.core.requests import FenceSet, SetFenced
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame

ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 16)


def rig_with(count: int, commit: int = 0, limits: StoreLimits = SMALL) -> StoreRig:
    """`count` frames, each a group of its own; the commit index is written down."""
    rig = StoreRig(limits)
    rig.open()
    for index in range(1, count + 1):
        rig.append_ok(frame(index))
    rig.tell_commit(commit)
    for _ in range(2):
        rig.feed(Tick())
        rig.run()
    return rig


def place_of_frame(rig: StoreRig, index: int) -> tuple[int, int]:
    """(segment, offset) of the frame that begins at `index`."""
    data = frame(index)
    for number, file in sorted(rig.disk.directories[SET].segments.items()):
        found = bytes(file.cached).find(data)
        if found >= 0:
            return number, found
    raise AssertionError(f"no frame {index}")


def flip(rig: StoreRig, index: int) -> None:
    number, offset = place_of_frame(rig, index)
    rig.disk.flip_bit(SET, number, offset + 20, 3)


def test_a_bad_last_group_that_nobody_acknowledged_is_cut_silently() -> None:
    rig = rig_with(5)
    flip(rig, 5)
    rig.crash()
    opened = rig.open(2)
    assert (opened.log_end, opened.damage) == (4, "")
    assert rig.append_ok(frame(5, epoch=2), epoch=2) == 5
    rig.crash()
    again = rig.open(3)
    assert (again.log_end, again.damage, again.epochs) == (5, "", ((1, 1), (2, 5)))


def test_a_bad_last_group_below_the_known_commit_index_is_damage() -> None:
    """History 17: an acknowledged last frame is not torn."""
    rig = rig_with(5, commit=5)
    flip(rig, 5)
    rig.crash()
    opened = rig.open(2)
    assert "5 was acknowledged" in opened.damage
    assert (opened.log_end, opened.commit_index) == (4, 5)
    refused = rig.append(frame(5, epoch=2), epoch=2)
    assert isinstance(refused, StoreRefused)
    assert refused.code is ErrorCode.ILLEGAL_STATE


@pytest.mark.parametrize("index", [1, 2, 20, 39])
def test_a_bad_group_before_a_good_one_is_damage_in_the_same_segment_or_an_earlier_one(index: int) -> None:
    rig = rig_with(40)
    assert len(rig.disk.directories[SET].segments) > 1
    flip(rig, index)
    rig.crash()
    opened = rig.open(2)
    assert opened.damage
    assert opened.log_end == index - 1
    _, frames, _ = rig.load(2)
    assert frames == [frame(each) for each in range(1, index)], "nothing behind the hole is served"


def test_a_whole_frame_behind_a_broken_one_of_the_same_unsynced_group_is_torn() -> None:
    rig = rig_with(2)
    rig.append_ok(frame(3), frame(4), frame(5))
    flip(rig, 4)
    rig.crash()
    opened = rig.open(2)
    assert (opened.log_end, opened.damage) == (3, "")


def test_a_journal_in_the_body_of_a_message_is_not_taken_for_the_journal() -> None:
    rig = StoreRig()
    opened = rig.open()
    forged = frame(7) + encode_group_header(salt_of(DiskId("other")), 1, 500, 10, LogIndex(0)) + frame(8)
    records: list[AnyRecord] = [
        DeclareQueue(None, "q", True),
        Publish(None, None, 0, (Message((QueueId(1),), b"", forged, 0, True),)),
    ]
    rig.append_ok(frame(1, records=records))
    number, offset = place_of(rig, b"LKSF")
    rig.disk.flip_bit(SET, number, offset + 20, 1)
    rig.crash()
    again = rig.open(2)
    assert (again.log_end, again.damage, again.disk) == (0, "", opened.disk)


def place_of(rig: StoreRig, data: bytes) -> tuple[int, int]:
    ((number, file),) = rig.disk.directories[SET].segments.items()
    return number, bytes(file.cached).find(data)


def test_a_missing_segment_is_damage() -> None:
    rig = rig_with(100)
    numbers = sorted(rig.disk.directories[SET].segments)
    assert len(numbers) >= 3
    del rig.disk.directories[SET].segments[numbers[1]]
    rig.crash()
    assert f"segment {numbers[1]} is missing" in rig.open(2).damage


def test_a_lost_meta_file_stays_damage_and_still_fences() -> None:
    rig = rig_with(3)
    rig.disk.directories[SET].meta = b"rubbish"
    rig.crash()
    assert rig.open(4).damage == "the meta file was lost"
    rig.crash()
    opened = rig.open(4)
    assert (opened.damage, opened.highest_epoch) == ("the meta file was lost", 4)


def test_frames_behind_a_cut_never_come_back() -> None:
    """Old frames are longer than the new ones: behind the new end old ones would still stand."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 8):
        rig.append_ok(frame(index, records=[DeclareQueue(None, "old" * 30, True)]))
    assert isinstance(rig.truncate(3, epoch=2), Truncated)
    rig.append_ok(frame(4, epoch=2), epoch=2)
    rig.crash()
    opened = rig.open(3)
    assert (opened.log_end, opened.damage, opened.epochs) == (4, "", ((1, 1), (2, 4)))
    assert rig.load(3)[1][-1] == frame(4, epoch=2)


def test_what_was_committed_is_never_cut() -> None:
    rig = rig_with(10, commit=6)
    refused = rig.truncate(5)
    assert isinstance(refused, StoreRefused)
    assert refused.code is ErrorCode.ILLEGAL_STATE
    assert isinstance(rig.truncate(6), Truncated)
    rig.crash()
    assert rig.open(2).log_end == 6


def test_what_was_committed_before_a_crash_is_never_cut() -> None:
    rig = rig_with(10, commit=6)
    rig.crash()
    assert rig.open(2).commit_index == 6
    refused = rig.truncate(5, epoch=2)
    assert isinstance(refused, StoreRefused)
    assert refused.code is ErrorCode.ILLEGAL_STATE
    assert rig.open(2).log_end == 10


def test_a_cut_in_the_middle_of_a_frame_is_refused_and_one_behind_the_end_cuts_nothing() -> None:
    rig = StoreRig()
    rig.open()
    rig.append_ok(frame(1, 4))
    assert isinstance(rig.truncate(2), StoreRefused)
    assert rig.truncate(9) == Truncated(SET, Epoch(1), ME, LogIndex(4))


def test_a_crash_at_any_step_of_a_cut_leaves_the_log_whole_or_cut() -> None:
    for steps in range(12):
        for seed in range(4):
            rig = StoreRig(seed=seed)
            rig.open()
            for index in range(1, 70):
                rig.append_ok(frame(index))
            rig.feed(Requested(rig.stream, Truncate(SET, Epoch(2), ME, LogIndex(20))))
            for _ in range(steps):
                if rig.has_jobs:
                    rig.step()
            is_answered = any(isinstance(answer, Truncated) for _, answer in rig.answers)
            rig.crash()
            opened = rig.open(2)
            assert opened.damage == ""
            assert opened.log_end == 20 if is_answered else opened.log_end in (20, 69)
            assert isinstance(rig.append(frame(opened.log_end + 1, epoch=2), epoch=2), Appended)
            end = opened.log_end + 1
            rig.crash()
            assert (rig.open(3).log_end, rig.open(3).damage) == (end, "")


def test_setting_aside_gives_a_new_disk_id_and_keeps_the_epoch_at_any_crash() -> None:
    for steps in range(16):
        rig = rig_with(5, commit=5)
        flip(rig, 2)
        rig.crash()
        old = rig.open(8)
        rig.feed(Requested(rig.stream, SetAside(SET, Epoch(8), ME)))
        for _ in range(steps):
            if rig.has_jobs:
                rig.step()
        rig.crash()
        refused = rig.ask(SetAside(SET, Epoch(7), ME), stream=77)[0]
        assert isinstance(refused, StoreRefused)
        opened = rig.open(8)
        assert opened.highest_epoch == 8
        if opened.disk == old.disk:
            assert opened.damage
            (answer,) = rig.ask(SetAside(SET, Epoch(8), ME))
            assert isinstance(answer, SetOpened)
            opened = answer
        assert (opened.damage, opened.log_end) == ("", 0)
        assert opened.disk != old.disk
        assert rig.disk.directories[SET].aside[-1] == old.disk
        assert rig.append_ok(frame(1, epoch=8), epoch=8) == 1


def test_a_torn_header_of_a_group_is_torn() -> None:
    rig = rig_with(3)
    number, offset = place_of_frame(rig, 3)
    rig.disk.flip_bit(SET, number, offset - GROUP_HEADER_BYTES + 9, 0)
    rig.crash()
    assert (rig.open(2).log_end, rig.open(2).damage) == (2, "")


def test_a_bad_segment_header_is_damage_when_groups_follow_it() -> None:
    rig = rig_with(3)
    rig.disk.flip_bit(SET, 1, SEGMENT_HEADER_BYTES - 2, 0)
    rig.crash()
    opened = rig.open(2)
    assert "header" in opened.damage
    assert opened.log_end == 0


def test_a_killed_process_leaves_nothing_reported_as_durable_that_is_not() -> None:
    """The page cache survives a kill: a recovery has to sync what it reads before it reports it."""
    rig = rig_with(1)
    rig.feed(Requested(rig.stream, appending(frame(2))))
    while "WriteSegment" not in rig.log[-1:]:
        rig.step()
    rig.crash(power=False)
    assert rig.open(2).log_end == 2
    rig.crash(power=True)
    assert rig.open(3).log_end == 2


def test_recovery_reads_the_live_log_and_not_its_history() -> None:
    rig = rig_with(3000, commit=3000)
    assert len(rig.disk.directories[SET].segments) <= 3
    rig.crash()
    rig.log.clear()
    opened = rig.open(2)
    assert opened.log_end == 3000
    assert opened.snapshot_index > 2900
    reads = rig.log.count("ReadSegment")
    assert reads <= 3 * (SMALL.segment_bytes // SMALL.scan_bytes + 2)


def test_a_segment_whose_creation_was_interrupted_was_never_there() -> None:
    for seed in range(12):
        rig = StoreRig(seed=seed)
        rig.open()
        end = 0
        while not rig.next_steps():
            end += 1
            rig.feed(Requested(rig.stream, appending(frame(end))))
            while rig.has_jobs and not any(
                type(answer) is Appended and answer.log_end == end for _, answer in rig.answers
            ):
                rig.step_journal()
        create = rig.next_steps()
        assert [type(step).__name__ for step in create] == ["CreateSegment"], "only the spare is under way"
        rig.disk.interrupt(SET, create[0], rig.chance)
        for epoch in range(2, 5):
            rig.crash(power=epoch % 2 == 0)
            opened = rig.open(epoch)
            assert (opened.damage, opened.log_end) == ("", end)
            end += 1
            rig.append_ok(frame(end, epoch=epoch), epoch=epoch)


# --- accepted damage ----------------------------------------------------------------------------------------------------


def accept_damage(rig: StoreRig, epoch: int) -> SetOpened | StoreRefused:
    (answer,) = rig.ask(AcceptDamage(SET, Epoch(epoch), ME))
    assert isinstance(answer, SetOpened | StoreRefused), answer
    return answer


def lose_segment(rig: StoreRig, place: int) -> int:
    """The last index before the frames of one segment that is gone."""
    number = sorted(rig.disk.directories[SET].segments)[place]
    first = min(index for index in range(1, 101) if place_of_frame(rig, index)[0] == number)
    del rig.disk.directories[SET].segments[number]
    return first - 1


@pytest.mark.parametrize(("index", "commit"), [(1, 0), (2, 0), (20, 0), (39, 0), (20, 40), (40, 40)])
def test_damage_that_is_accepted_leaves_the_undamaged_part_for_ever(index: int, commit: int) -> None:
    """R7 on a damaged disk: the log ends before the hole, and what lay behind it never comes back."""
    rig = rig_with(40, commit, ONE_SEGMENT if commit else SMALL)
    flip(rig, index)
    rig.crash()
    opened = rig.open(2)
    assert opened.damage
    assert opened.commit_index == commit
    accepted = accept_damage(rig, 2)
    assert isinstance(accepted, SetOpened)
    assert (accepted.damage, accepted.log_end) == ("", index - 1)
    assert accepted.commit_index == min(commit, index - 1)
    for again in range(index, 45):
        assert rig.append_ok(frame(again, epoch=2), epoch=2) == again
    rig.crash()
    opened = rig.open(3)
    assert (opened.damage, opened.log_end) == ("", 44)
    assert opened.epochs == (((1, 1), (2, index)) if index > 1 else ((2, 1),))


@pytest.mark.parametrize("place", [0, 1])
def test_a_missing_segment_that_is_accepted_ends_the_log_before_it(place: int) -> None:
    rig = rig_with(100)
    before = lose_segment(rig, place)
    rig.crash()
    assert "missing" in rig.open(2).damage
    opened = accept_damage(rig, 2)
    assert isinstance(opened, SetOpened)
    assert (opened.damage, opened.log_end) == ("", before)
    for again in range(before + 1, 105):
        rig.append_ok(frame(again, epoch=2), commit=again, epoch=2)
    rig.tell_commit(104, epoch=2)
    rig.run()
    rig.crash()
    opened = rig.open(3)
    assert (opened.damage, opened.log_end) == ("", 104)


def test_a_bad_segment_header_that_is_accepted_ends_the_log_before_it() -> None:
    rig = rig_with(40, commit=0)
    number = min(rig.disk.directories[SET].segments)
    rig.disk.flip_bit(SET, number, 9, 1)
    rig.crash()
    assert rig.open(2).damage
    opened = accept_damage(rig, 2)
    assert isinstance(opened, SetOpened)
    assert (opened.damage, opened.log_end) == ("", 0)
    rig.append_ok(frame(1, epoch=2), epoch=2)
    rig.crash()
    assert (rig.open(3).damage, rig.open(3).log_end) == ("", 1)


def test_a_crash_at_any_step_of_an_acceptance_leaves_the_damage_or_the_accepted_log() -> None:
    ends = set()
    for seed in range(40):
        rig = rig_with(40, 40, ONE_SEGMENT)
        flip(rig, 20)
        rig.crash()
        assert rig.open(2).damage
        rig.chance.seed(seed)
        rig.feed(Requested(rig.stream, AcceptDamage(SET, Epoch(2), ME)))
        for _ in range(seed % 10):
            if rig.has_jobs:
                rig.step()
        rig.crash()
        opened = rig.open(3)
        assert opened.log_end == 19
        assert opened.commit_index == (40 if opened.damage else 19)
        ends.add(bool(opened.damage))
    assert ends == {True, False}


def test_an_undamaged_set_has_nothing_to_accept() -> None:
    rig = rig_with(5, commit=5)
    opened = accept_damage(rig, 1)
    assert isinstance(opened, SetOpened)
    assert (opened.log_end, opened.commit_index) == (5, 5)


def test_without_a_state_to_go_on_from_no_damage_is_accepted() -> None:
    rig = rig_with(5, commit=5)
    rig.crash()
    rig.disk.directories[SET].meta = b"rubbish"
    assert rig.open(2).has_no_state, "and whoever opens it hears that before he asks"
    refused = accept_damage(rig, 2)
    assert isinstance(refused, StoreRefused)
    assert "nothing undamaged" in refused.message
    assert rig.open(3).damage


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_damage_that_took_every_segment_can_be_accepted(has_snapshot: bool) -> None:
    """The one that is sealed is missing, and none has a higher number."""
    rig = StoreRig()
    rig.open()
    count = 120 if has_snapshot else 5
    for index in range(1, count + 1):
        rig.append_ok(frame(index), commit=index - 1)
    if has_snapshot:
        tick(rig, 8)
        for index in range(count + 1, count + 4):
            rig.append_ok(frame(index), commit=index - 1)
    rig.tell_commit(count)
    tick(rig, 2)
    rig.disk.directories[SET].segments.clear()
    rig.crash()
    assert rig.open(2).damage
    opened = accept_damage(rig, 2)
    assert isinstance(opened, SetOpened) and not opened.damage
    end = rig.append_ok(frame(opened.log_end + 1, epoch=2), epoch=2)
    rig.crash()
    again = rig.open(3)
    assert (again.damage, again.log_end) == ("", end)


def test_a_seal_that_an_older_version_gave_to_itself_is_damage_that_can_be_accepted() -> None:
    rig = StoreRig()
    rig.open()
    directory = rig.disk.directories[SET]
    meta = decode_set_meta(directory.meta)
    directory.meta = encode_meta(msgspec.structs.replace(meta, seals=(Seal(1, SEGMENT_HEADER_BYTES, 1),)))
    rig.crash()
    assert "continued by 1" in rig.open(2).damage
    opened = accept_damage(rig, 2)
    assert isinstance(opened, SetOpened) and not opened.damage
    rig.append_ok(frame(1, epoch=2), epoch=2)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_bad_last_group_that_this_process_knew_to_be_committed_is_damage(restarts: bool) -> None:
    """Though no quiet tick has written its commit index down; and for the next process, too."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 6):
        rig.append_ok(frame(index), commit=index - 1)
    rig.tell_commit(5)
    at = bytes(rig.disk.directories[SET].segments[1].cached).rstrip(b"\0").rfind(b"LKSF")
    rig.disk.flip_bit(SET, 1, at + 20, 3)
    assert not rig.open().damage, "nobody has read it"
    assert isinstance(rig.load()[2], StoreRefused)
    opened = rig.open()
    assert "5 was acknowledged here" in opened.damage
    assert (opened.log_end, opened.commit_index) == (4, 5)
    if restarts:
        rig.crash()
    assert rig.open(2).damage
    accepted = accept_damage(rig, 2)
    assert isinstance(accepted, SetOpened) and (accepted.damage, accepted.log_end) == ("", 4)
    assert rig.open(2).damage == ""


def tick(rig: StoreRig, count: int) -> None:
    for _ in range(count):
        rig.feed(Tick())
        rig.run()


def test_what_this_process_acknowledged_and_a_failing_write_spoiled_is_damage() -> None:
    """Groups share sectors: one that cannot be written may take the end of the one before it along."""
    rig = rig_with(5, limits=ONE_SEGMENT)

    def spoil(set_name: SetName, step: Step) -> None:
        if isinstance(step, SyncSegment):
            rig.disk.fault = None
            flip(rig, 5)
            raise DiskError(DiskProblem.FAILED, "EIO", step)

    rig.disk.fault = spoil
    assert isinstance(rig.append(frame(6)), StoreRefused)
    opened = rig.open(1)
    assert (opened.log_end, opened.damage) == (4, "the log ends at 4, but 5 was acknowledged here")


def fail_once(rig: StoreRig, kind: type[Step]) -> None:
    """The next step of a kind."""

    def fail(set_name: SetName, step: Step) -> None:
        if isinstance(step, kind):
            rig.disk.fault = None
            raise DiskError(DiskProblem.FAILED, "EIO", step)

    rig.disk.fault = fail


def closed_with_commit(rig: StoreRig, commit: int) -> None:
    """A failure closes the set before any file has the commit index that the process was told."""
    rig.tell_commit(commit)
    fail_once(rig, WriteMeta)
    (refused,) = rig.ask(OpenSet(SET, Epoch(2), ME))
    assert isinstance(refused, StoreRefused)


def test_what_this_process_knew_to_be_committed_is_not_cut_behind_a_failure() -> None:
    rig = rig_with(6, limits=ONE_SEGMENT)
    closed_with_commit(rig, 5)
    opened = rig.open(3)
    assert (opened.log_end, opened.commit_index, opened.damage) == (6, 5, "")
    refused = rig.truncate(4, epoch=3)
    assert isinstance(refused, StoreRefused) and "below the commit index 5" in refused.message
    assert isinstance(rig.truncate(5, epoch=3), Truncated)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_hole_does_not_hide_what_this_process_knew_to_be_committed(restarts: bool) -> None:
    """Operators decide by it what they give up (R7)."""
    rig = rig_with(6, limits=ONE_SEGMENT)
    flip(rig, 3)
    closed_with_commit(rig, 5)
    for epoch in (3, 4):
        opened = rig.open(epoch)
        assert opened.damage and (opened.log_end, opened.commit_index) == (2, 5)
        if restarts:
            rig.crash()


def test_what_was_acknowledged_and_cut_since_is_missed_by_nobody() -> None:
    rig = rig_with(5, limits=ONE_SEGMENT)
    assert isinstance(rig.truncate(3), Truncated)
    fail_once(rig, SyncSegment)
    assert isinstance(rig.append(frame(4)), StoreRefused)
    assert rig.open(1).damage == ""


def test_a_commit_index_beyond_the_log_is_no_word_on_what_a_later_epoch_puts_there() -> None:
    """A learner was told it, and an operator has the set go on with what the learner has (R7)."""
    rig = StoreRig(ONE_SEGMENT)
    rig.open(5)
    for index in (1, 2, 3):
        rig.append_ok(frame(index, epoch=5), commit=100, epoch=5)
    assert rig.open(7).commit_index == 3
    rig.append_ok(frame(4, epoch=7), commit=3, epoch=7)
    assert rig.open(7).commit_index == 3
    assert isinstance(rig.truncate(3, epoch=7), Truncated)


def test_so_it_is_where_a_fence_told_of_the_later_epoch_first() -> None:
    rig = StoreRig(ONE_SEGMENT)
    rig.open(5)
    for index in (1, 2, 3):
        rig.append_ok(frame(index, epoch=5), commit=100, epoch=5)
    (fenced,) = rig.ask_reader(FenceSet(SET, Epoch(7)))
    assert isinstance(fenced, SetFenced) and fenced.commit_index == 3
    rig.open(7)
    rig.append_ok(frame(4, epoch=7), commit=3, epoch=7)
    assert rig.open(7).commit_index == 3
    assert isinstance(rig.truncate(3, epoch=7), Truncated)
