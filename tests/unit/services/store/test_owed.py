"""Segments that stay for readers of committed events: which, for how long, and what a reader gets (DESIGN 5, 7, history 19)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import check_frame
from lockstep.core.ids import Epoch, LogIndex, QueueId, SetName
from lockstep.core.records import (
    AdvanceSubscription,
    CloseSubscription,
    DeclareQueue,
    Message,
    OpenSubscription,
    Prepare,
    Publish,
)
from lockstep.core.store_protocol import BeginInstall, EndInstall, Installed, InstallItems, Truncated
from services.store.core.disk import AnyStep, DeleteSegments, Lane, ReadSegment, SettleSegment
from services.store.core.messages import ReaderRequested, Requested, StreamClosed, Tick
from services.store.core.requests import AnyReaderAnswer, FramesRead, ReadFrames, ReadRefused
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame

QUEUE = QueueId(1)
GROUP = LogIndex(2)


def data_of(index: int, epoch: int = 1, note: bytes = b"") -> bytes:
    """Frame 1 declares a queue, frame 2 opens a group that is owed everything behind itself, others publish."""
    if index == 1:
        return frame(1, records=[DeclareQueue(None, "q", True)])
    if index == GROUP:
        return frame(2, records=[OpenSubscription(None, "spark", GROUP)])
    message = Message((QUEUE,), b"", b"body-%d%s" % (index, note) + bytes(100), is_durable=True)
    return frame(index, epoch=epoch, records=[Publish(None, None, 0, (message,))])


def rig_with(count: int, **limits: int) -> StoreRig:
    """`count` frames, all but the last committed: about thirty fill a segment."""
    rig = StoreRig(replace(SMALL, unconsolidated_bytes=1000, **limits))
    rig.open()
    for index in range(1, count + 1):
        rig.append_ok(data_of(index), commit=index - 1)
    return rig


def settle(rig: StoreRig) -> None:
    """Quiet seconds."""
    for _ in range(2):
        rig.feed(Tick())
        rig.run()


def ask(
    rig: StoreRig, from_index: int, to_index: int = 0, bytes_max: int = 0, epoch: int = 1
) -> list[AnyReaderAnswer]:
    request = ReadFrames(SET, Epoch(epoch), LogIndex(from_index), LogIndex(to_index), bytes_max)
    return rig.ask_reader(request)


def read(
    rig: StoreRig, from_index: int, to_index: int = 0, bytes_max: int = 0, epoch: int = 1
) -> list[bytes]:
    *pieces, last = ask(rig, from_index, to_index, bytes_max, epoch)
    assert last == FramesRead((), True)
    return [data for piece in pieces if isinstance(piece, FramesRead) for data in piece.frames]


def refusal(rig: StoreRig, from_index: int, epoch: int = 1) -> ReadRefused:
    *_, answer = ask(rig, from_index, epoch=epoch)
    assert isinstance(answer, ReadRefused), answer
    return answer


def segments(rig: StoreRig) -> list[int]:
    return sorted(rig.disk.directories[SET].segments)


def watch(rig: StoreRig) -> list[AnyStep]:
    """All steps from here on."""
    steps: list[AnyStep] = []

    def see(set_name: SetName, step: AnyStep) -> None:
        steps.append(step)

    rig.disk.fault = see
    return steps


def test_a_segment_stays_while_a_group_has_not_acknowledged_it_and_goes_when_it_has() -> None:
    rig = rig_with(200)
    status = rig.core.status()[0]
    assert status.snapshot_index > 150, "the state did not wait"
    assert status.owed_bytes >= 4 * SMALL.segment_bytes
    assert status.lowest_index == 1, "the group's own record is in the first segment"
    assert read(rig, 3) == [data_of(index) for index in range(3, 200)]
    rig.append_ok(frame(201, records=[AdvanceSubscription(None, GROUP, LogIndex(100))]))
    rig.tell_commit(201)
    settle(rig)
    lowest = rig.core.status()[0].lowest_index
    assert 60 < lowest <= 101
    assert read(rig, lowest)[0] == data_of(lowest)
    refused = refusal(rig, lowest - 1)
    assert (refused.code, refused.lowest_index) == (ErrorCode.OUT_OF_RANGE, lowest)
    assert str(lowest) in refused.message
    rig.append_ok(frame(202, records=[CloseSubscription(None, GROUP)]))
    rig.tell_commit(202)
    settle(rig)
    assert rig.core.status()[0].owed_bytes == 0
    assert len(segments(rig)) <= 2


def test_what_nobody_is_owed_does_not_stay() -> None:
    rig = StoreRig()
    rig.open()
    for index in range(1, 200):
        rig.append_ok(frame(index), commit=index - 1)
    settle(rig)
    status = rig.core.status()[0]
    assert status.owed_bytes == 0
    assert refusal(rig, 1).lowest_index == status.lowest_index > 100


def test_content_of_a_transaction_without_outcome_stays_until_it_has_one() -> None:
    """History 19: the event of a long-prepared branch has its bodies."""
    rig = StoreRig()
    rig.open()
    key = LogIndex(2), Epoch(1)
    message = Message((QUEUE,), b"", b"body", is_durable=True)
    rig.append_ok(frame(1, records=[DeclareQueue(None, "q", True)]))
    rig.append_ok(frame(2, 4))
    rig.append_ok(frame(5, records=[Publish(None, key, 0, (message,))]))
    for index in range(6, 200):
        rig.append_ok(frame(index), commit=index - 1)
    settle(rig)
    assert rig.core.status()[0].lowest_index <= 5
    assert b"body" in b"".join(read(rig, 5, 5))
    rig.append_ok(frame(200, records=[Prepare(None, key, True)]))
    rig.tell_commit(200)
    settle(rig)
    assert rig.core.status()[0].owed_bytes == 0


@pytest.mark.parametrize("has_crashed", [False, True])
def test_content_of_a_transaction_that_ended_behind_what_a_group_is_done_with_stays(
    has_crashed: bool,
) -> None:
    """History 19: the end is owed, and with it the messages that were there long before."""
    rig = StoreRig(replace(SMALL, unconsolidated_bytes=1000))
    rig.open()
    key = LogIndex(3), Epoch(1)
    message = Message((QUEUE,), b"", b"content", is_durable=True)
    rig.append_ok(data_of(1), data_of(2), frame(3, records=[Publish(None, key, 0, (message,))]))
    for index in range(4, 100):
        rig.append_ok(data_of(index), commit=index - 1)
    rig.append_ok(frame(100, records=[AdvanceSubscription(None, GROUP, LogIndex(98))]))
    rig.append_ok(frame(101, records=[Prepare(None, key, True)]))
    rig.tell_commit(101)
    settle(rig)
    if has_crashed:
        rig.crash()
        rig.open()
    for index in range(102, 200):
        rig.append_ok(data_of(index), commit=index - 1)
    settle(rig)
    assert b"content" in b"".join(read(rig, 3, 3))
    rig.append_ok(frame(200, records=[AdvanceSubscription(None, GROUP, LogIndex(190))]))
    rig.tell_commit(200)
    settle(rig)
    assert rig.core.status()[0].lowest_index > 101


def test_what_is_owed_is_there_after_a_crash_and_recovery_reads_none_of_it() -> None:
    rig = rig_with(200)
    rig.crash()
    steps = watch(rig)
    assert rig.open().damage == ""
    lowest_of_chain = min(step.number for step in steps if isinstance(step, SettleSegment))
    assert lowest_of_chain > 5
    assert all(step.number >= lowest_of_chain for step in steps if isinstance(step, ReadSegment))
    deleted = [number for step in steps if isinstance(step, DeleteSegments) for number in step.numbers]
    assert all(number > lowest_of_chain for number in deleted), "an empty one at most, behind the log's end"
    assert read(rig, 3)[:150] == [data_of(index) for index in range(3, 153)]


def test_a_segment_that_was_cut_is_owed_up_to_its_cut() -> None:
    rig = rig_with(15)
    rig.append_ok(*(data_of(index) for index in range(16, 21)))
    assert isinstance(rig.truncate(15, epoch=2), Truncated)
    for index in range(16, 200):
        rig.append_ok(data_of(index, 2, b"new"), commit=index - 1, epoch=2)
    for _ in range(2):
        kept = [data_of(index) for index in range(3, 16)]
        new = [data_of(index, 2, b"new") for index in range(16, 199)]
        assert read(rig, 3, 198, epoch=2) == kept + new
        rig.crash()
        rig.open(2)


def test_a_range_is_read_in_pieces_and_ends_with_the_frame_that_holds_its_end() -> None:
    rig = StoreRig()
    rig.open()
    rig.append_ok(data_of(1), frame(2, records=[OpenSubscription(None, "spark", LogIndex(0))]))
    frames = [frame(first, first + 2) for first in range(3, 300, 3)]
    for data in frames:
        rig.append_ok(data, commit=min(check_frame(data).first - 1, 290))
    assert rig.core.status()[0].owed_bytes > 0
    assert read(rig, 4, 9) == frames[:3], "4 is in the first of them, and 9 in the third"
    assert read(rig, 9, 4) == []
    assert check_frame(read(rig, 280, 299)[-1]).last == 290, "never beyond the commit index (R11)"
    assert read(rig, 291) == [], "nothing yet"
    found: list[bytes] = []
    while True:
        piece = read(rig, check_frame(found[-1]).last + 1 if found else 1, 290, 500)
        if not piece:
            break
        assert (len(piece) > 1 and sum(map(len, piece[:-1])) <= 500) or piece[-1] == frames[95]
        found += piece
    assert found[2:] == frames[: len(found) - 2]
    assert check_frame(found[-1]).last == 290
    assert read(rig, 0) == found, "from the first that is there"


def test_beyond_its_bytes_the_oldest_goes_and_whoever_comes_for_it_is_told() -> None:
    rig = rig_with(200, owed_bytes_max=3 * SMALL.segment_bytes)
    status = rig.core.status()[0]
    assert status.owed_bytes == 3 * SMALL.segment_bytes
    assert status.lowest_index > 30
    assert {note.event for note in rig.notes} == {"owed segments dropped"}
    assert refusal(rig, 3).lowest_index == status.lowest_index
    assert check_frame(read(rig, status.lowest_index)[0]).first == status.lowest_index
    rig.crash()
    rig.open()
    assert rig.core.status()[0].owed_bytes <= 3 * SMALL.segment_bytes


def fill_by_others(rig: StoreRig) -> None:
    rig.disk.free_bytes = 2 * rig.limits.reserve_bytes - SMALL.segment_bytes


def fill_at_once(rig: StoreRig) -> None:
    """Not even a segment can be created."""
    rig.disk.free_bytes = 0


@pytest.mark.parametrize("fill", [fill_by_others, fill_at_once])
def test_when_the_disk_is_nearly_full_what_is_owed_goes_before_anything_is_refused(
    fill: Callable[[StoreRig], None],
) -> None:
    rig = rig_with(200, reserve_bytes=4 * SMALL.segment_bytes)
    owed_bytes = rig.core.status()[0].owed_bytes
    fill(rig)
    rig.feed(Tick())
    rig.run()
    assert rig.core.status()[0].owed_bytes < owed_bytes
    assert "owed segments dropped" in {note.event for note in rig.notes}
    for index in range(201, 260):
        rig.append_ok(data_of(index), commit=index - 1)


def test_a_bad_owed_segment_is_refused_to_its_readers_and_does_not_damage_the_set() -> None:
    rig = rig_with(200)
    bad = segments(rig)[2]
    content = bytes(rig.disk.directories[SET].segments[bad].cached)
    hit = next(index for index in range(3, 200) if data_of(index) in content)
    rig.crash()
    rig.open()
    rig.disk.flip_bit(SET, bad, content.find(data_of(hit)) + 100, 3)
    *_, refused = ask(rig, 3)
    assert isinstance(refused, ReadRefused)
    assert refused.code is ErrorCode.OUT_OF_RANGE
    lowest = rig.core.status()[0].lowest_index
    assert hit < refused.lowest_index == lowest
    assert [note.event for note in rig.notes] == ["owed segment unreadable"]
    assert read(rig, lowest)[0] == data_of(lowest)
    assert read(rig, 0)[0] == data_of(lowest)
    assert rig.append_ok(data_of(201)) == 201
    assert rig.core.status()[0].damage == ""
    rig.crash()
    assert rig.open().damage == ""


def test_a_table_that_is_remembered_does_not_hide_bad_bytes() -> None:
    rig = rig_with(200)
    first = segments(rig)[0]
    assert read(rig, 3)
    rig.disk.flip_bit(SET, first, 700, 3)
    assert refusal(rig, 3).code is ErrorCode.OUT_OF_RANGE
    assert rig.append_ok(data_of(201)) == 201


def test_owed_segments_that_are_gone_from_the_disk_are_only_missing_to_readers() -> None:
    rig = rig_with(200)
    gone = segments(rig)[1]
    rig.crash()
    del rig.disk.directories[SET].segments[gone]
    assert rig.open().damage == ""
    lowest = rig.core.status()[0].lowest_index
    assert 30 < lowest < 150
    assert refusal(rig, 3).lowest_index == lowest
    assert read(rig, lowest)[0] == data_of(lowest)
    assert min(segments(rig)) == gone + 1, "what lies below a gap is of no use"


def test_a_segment_is_not_deleted_while_it_is_read() -> None:
    rig = rig_with(200)
    first = segments(rig)[0]
    rig.append_ok(frame(201, records=[CloseSubscription(None, GROUP)]))
    rig.tell_commit(201)
    before = len(rig.read)
    rig.feed(ReaderRequested(1000, ReadFrames(SET, Epoch(1), LogIndex(3), LogIndex(60))))
    for _ in range(2):
        rig.feed(Tick())
        rig.run_but(Lane.READ)
    assert first in segments(rig), "it is being read"
    assert rig.core.status()[0].owed_bytes == 0, "nobody finds it any more"
    rig.run()
    assert first not in segments(rig)
    *pieces, last = rig.read[before:]
    assert isinstance(last, ReadRefused), "the rest is gone"
    found = [data for piece in pieces if isinstance(piece, FramesRead) for data in piece.frames]
    assert found == [data_of(index) for index in range(3, 3 + len(found))] != []


def test_nobody_waits_for_a_slow_reader() -> None:
    rig = rig_with(200)
    slow, quick = 2000, 2001
    rig.slow_streams.add(slow)
    for stream in (slow, quick):
        rig.feed(ReaderRequested(stream, ReadFrames(SET, Epoch(1), LogIndex(3), LogIndex(150))))
    before = len(rig.read)
    rig.run()
    whole = [data_of(index) for index in range(3, 151)]
    parts = [answer.frames for answer in rig.read[before:] if isinstance(answer, FramesRead)]
    assert parts.count(()) == 1, "the quick one has reached the end"
    found = [data for part in parts for data in part]
    assert len(found) > len(whole), "and the slow one has got some"
    assert [data for data in whole if data in found] == whole
    assert not rig.core.is_idle
    rig.feed(StreamClosed(slow))
    assert rig.core.is_idle


def test_a_log_that_grows_is_not_run_after() -> None:
    rig = rig_with(100)
    before = len(rig.read)
    rig.feed(ReaderRequested(1000, ReadFrames(SET, Epoch(1), LogIndex(3))))
    for index in range(101, 120):
        rig.feed(Requested(rig.stream, appending(data_of(index), commit=index - 1)))
    rig.run()
    assert rig.read[-1] == FramesRead((), True)
    found = [data for answer in rig.read[before:] if isinstance(answer, FramesRead) for data in answer.frames]
    assert found == [data_of(index) for index in range(3, 100)]


def test_a_snapshot_that_is_installed_leaves_nothing_owed() -> None:
    rig = rig_with(200)
    head = SET, Epoch(2), ME
    for request in (
        BeginInstall(*head, LogIndex(300), ((Epoch(1), LogIndex(1)),), 7),
        InstallItems(*head, ()),
        EndInstall(*head),
    ):
        answers = rig.ask(request)
    assert isinstance(answers[-1], Installed)
    status = rig.core.status()[0]
    assert (status.owed_bytes, status.lowest_index) == (0, 301)
    refused = refusal(rig, 3, epoch=2)
    assert (refused.code, refused.lowest_index) == (ErrorCode.OUT_OF_RANGE, 301)
    assert read(rig, 301, epoch=2) == []
    rig.crash()
    rig.open(2)
    assert segments(rig) == []
