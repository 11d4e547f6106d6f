"""Streams that take nothing: whoever reads a snapshot holds up nobody but the consolidator, and that not for ever."""

from dataclasses import replace

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, Incarnation, LogIndex, MessageId, QueueId, SetName
from lockstep.core.records import DeclareQueue, Message, Publish
from lockstep.core.store_protocol import (
    LoadState,
    OpenSet,
    SetOpened,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncate,
    Truncated,
)
from services.store.core.disk import AnyStep, DiskError, DiskProblem, ReadSnapshotItems, SyncSegment
from services.store.core.messages import ChunkSent, ReaderRequested, Requested, StreamClosed, Tick
from services.store.core.requests import (
    AnyReaderAnswer,
    ContentsRead,
    FenceSet,
    FramesRead,
    ItemsRead,
    ReadContents,
    ReadFrames,
    ReadItems,
    ReadRefused,
    SetFenced,
)
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, frame

LIMITS = replace(SMALL, unconsolidated_bytes=8192, unconsolidated_quiet_bytes=500, batch_items_max=1)
SLOW = 500
COVERED = 39
"""Index of the snapshot."""
END = COVERED + 1


class SlowReading:
    """A set whose frames but the last are in the snapshot, and a reader that has taken nothing of that."""

    def __init__(self) -> None:
        self.rig = StoreRig(LIMITS)
        self.rig.open()
        self.rig.append_ok(frame(1, records=[DeclareQueue(None, "q", True)]))
        self.end = 1
        self.grow(COVERED - 1)
        self.rig.tell_commit(COVERED)
        self.tick(8)
        assert self.covered == COVERED
        self.rig.append_ok(frame(END), commit=COVERED)
        self.end = END
        self.rig.slow_streams.add(SLOW)
        self.rig.feed(ReaderRequested(SLOW, ReadItems(SET, Epoch(1), b"")))
        self.rig.run()
        self.answers: list[AnyReaderAnswer] = list(self.rig.read)
        assert len(self.answers) == LIMITS.chunks_unsent_max, "no more is read for it"

    @property
    def covered(self) -> int:
        return self.rig.core.status()[0].snapshot_index

    def grow(self, count: int) -> None:
        """Frames of a message each, all committed but the last."""
        for _ in range(count):
            self.end += 1
            message = Message((QueueId(1),), b"p", bytes(300), 0, True)
            data = frame(self.end, records=[Publish(None, None, 0, (message,))])
            self.rig.append_ok(data, commit=self.end - 1)

    def tick(self, count: int) -> None:
        for _ in range(count):
            self.rig.feed(Tick())
            self.rig.run()

    def take(self, count: int) -> None:
        """The reader takes so many chunks."""
        for _ in range(count):
            before = len(self.rig.read)
            self.rig.feed(ChunkSent(SLOW))
            self.rig.run()
            self.answers += self.rig.read[before:]

    def items(self) -> list[StateItem]:
        """All that the reader got, which is everything."""
        assert isinstance(self.answers[-1], ItemsRead) and self.answers[-1].is_last
        assert {answer.snapshot_index for answer in self.answers if isinstance(answer, ItemsRead)} == {
            COVERED
        }
        return [item for answer in self.answers if isinstance(answer, ItemsRead) for item in answer.items]


@pytest.fixture
def slow() -> SlowReading:
    return SlowReading()


def whole_snapshot(slow: SlowReading) -> list[StateItem]:
    answers = slow.rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    return [item for answer in answers if isinstance(answer, ItemsRead) for item in answer.items]


def test_a_slow_reader_holds_up_no_bodies_and_no_frames(slow: SlowReading) -> None:
    (contents,) = slow.rig.ask_reader(ReadContents(SET, Epoch(1), (MessageId(2 << 20),)))
    assert isinstance(contents, ContentsRead)
    frames = slow.rig.ask_reader(ReadFrames(SET, Epoch(1), LogIndex(COVERED)))
    assert isinstance(frames[0], FramesRead) and frames[0].frames


def test_a_slow_reader_holds_up_no_other_one(slow: SlowReading) -> None:
    expected = whole_snapshot(slow)
    slow.take(100)
    assert expected and slow.items() == expected


def test_a_slow_reader_holds_up_no_truncate_and_no_fence(slow: SlowReading) -> None:
    (cut,) = slow.rig.ask(Truncate(SET, Epoch(2), ME, LogIndex(COVERED)))
    assert isinstance(cut, Truncated)
    (fenced,) = slow.rig.ask_reader(FenceSet(SET, Epoch(3)))
    assert isinstance(fenced, SetFenced)


def test_a_slow_reader_holds_up_no_opening_after_a_failed_step(slow: SlowReading) -> None:
    def fail(_: SetName, step: AnyStep) -> None:
        if isinstance(step, SyncSegment):
            raise DiskError(DiskProblem.FAILED, "no", step)

    slow.rig.disk.fault = fail
    assert isinstance(slow.rig.append(frame(END + 1)), StoreRefused)
    slow.rig.disk.fault = None
    assert isinstance(slow.rig.open(), SetOpened)
    slow.take(1)
    refused = slow.answers[-1]
    assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE
    assert not [note for note in slow.rig.notes if note.details.startswith("read:")], "no disk has failed"


def test_a_reader_that_goes_on_gets_the_snapshot_that_it_began_with(slow: SlowReading) -> None:
    expected = whole_snapshot(slow)
    for _ in range(6):
        slow.grow(1)
        slow.tick(LIMITS.silent_ticks_max // 2)
        slow.take(1)
    assert slow.covered == COVERED, "the consolidator waits for it"
    slow.take(100)
    assert slow.items() == expected
    slow.grow(1)
    slow.tick(LIMITS.unconsolidated_ticks)
    assert slow.covered > COVERED


def test_the_consolidator_waits_no_longer_for_a_reader_that_takes_nothing(slow: SlowReading) -> None:
    slow.grow(3)
    slow.tick(LIMITS.silent_ticks_max)
    assert slow.covered == COVERED
    slow.grow(1)
    slow.tick(LIMITS.unconsolidated_ticks)
    assert slow.covered > COVERED
    slow.take(2)
    refused = slow.answers[-1]
    assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE


def test_a_reader_that_took_nothing_for_long_goes_on_where_nothing_was_consolidated(
    slow: SlowReading,
) -> None:
    slow.tick(10 * LIMITS.silent_ticks_max)
    expected = whole_snapshot(slow)
    slow.take(100)
    assert slow.items() == expected


def test_the_consolidator_waits_no_longer_when_very_much_lies_behind(slow: SlowReading) -> None:
    for _ in range(2):
        slow.grow(8)
        slow.take(1)
        assert slow.covered == COVERED
    slow.grow(8)
    assert slow.covered > COVERED
    slow.take(100)
    refused = slow.answers[-1]
    assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE


def test_the_consolidator_does_not_wait_for_a_reader_that_left(slow: SlowReading) -> None:
    slow.grow(3)
    slow.rig.feed(StreamClosed(SLOW))
    slow.tick(LIMITS.unconsolidated_ticks)
    assert slow.covered > COVERED


def test_the_consolidator_does_not_wait_for_a_reader_that_left_while_it_was_read_for(
    slow: SlowReading,
) -> None:
    slow.rig.feed(ChunkSent(SLOW))
    slow.rig.feed(ChunkSent(SLOW))
    while slow.rig.has_jobs and not any(
        isinstance(step, ReadSnapshotItems) for step in slow.rig.next_steps()
    ):
        slow.rig.step()
    assert slow.rig.has_jobs
    slow.rig.feed(StreamClosed(SLOW))
    slow.rig.run()
    assert slow.rig.read == slow.answers, "nothing more is sent"
    slow.grow(3)
    slow.tick(LIMITS.unconsolidated_ticks)
    assert slow.covered > COVERED


# --- a load -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hung() -> StoreRig:
    """A writer asked for the state and takes nothing of it."""
    rig = SlowReading().rig
    rig.feed(StreamClosed(SLOW))
    rig.slow_streams.add(rig.stream)
    rig.feed(Requested(rig.stream, LoadState(SET, Epoch(1), ME)))
    rig.run()
    assert isinstance(rig.answers[-1][1], StateChunk)
    return rig


def tick(rig: StoreRig, count: int) -> None:
    for _ in range(count):
        rig.feed(Tick())
        rig.run()


def test_another_writer_waits_for_a_load_no_longer_than_it_goes_on(hung: StoreRig) -> None:
    hung.feed(Requested(77, OpenSet(SET, Epoch(2), Incarnation("other"))))
    hung.run()
    for _ in range(3):
        tick(hung, LIMITS.silent_ticks_max)
        hung.feed(ChunkSent(hung.stream))
        hung.run()
    assert isinstance(hung.answers[-1][1], StateChunk)
    tick(hung, LIMITS.silent_ticks_max + 1)
    (before, refused), (stream, opened) = hung.answers[-2:]
    assert before == hung.stream and isinstance(refused, StoreRefused)
    assert refused.code is ErrorCode.UNAVAILABLE
    assert stream == 77 and isinstance(opened, SetOpened)


def test_a_fence_waits_for_a_load_no_longer_than_it_goes_on(hung: StoreRig) -> None:
    tick(hung, 2 * LIMITS.silent_ticks_max)
    (fenced,) = hung.ask_reader(FenceSet(SET, Epoch(3)))
    assert isinstance(fenced, SetFenced)


def test_a_load_for_which_nobody_waits_takes_its_time(hung: StoreRig) -> None:
    tick(hung, 3 * LIMITS.silent_ticks_max)
    hung.slow_streams.clear()
    for _ in range(100):
        hung.feed(ChunkSent(hung.stream))
        hung.run()
    assert isinstance(hung.answers[-1][1], StateLoaded)
