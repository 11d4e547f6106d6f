"""Readers of a snapshot that take their time: nobody waits for them but the consolidator, and it not for ever."""

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, MessageId, QueueId, SetName
from lockstep.core.records import DeclareQueue, Message, Publish
from lockstep.core.store_protocol import OpenSet, SetOpened, StateItem, StoreRefused, Truncate, Truncated
from services.store.core.disk import AnyStep, DiskError, DiskProblem, SyncSegment
from services.store.core.messages import ChunkSent, ReaderRequested, StreamClosed, Tick
from services.store.core.requests import (
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

SLOW = 500
LAST = 39


def publishing(index: int) -> bytes:
    return frame(
        index, records=[Publish(None, None, 0, (Message((QueueId(1),), b"p", bytes(300), 0, True),))]
    )


def tick(rig: StoreRig, count: int) -> None:
    for _ in range(count):
        rig.feed(Tick())
        rig.run()


@pytest.fixture
def rig() -> StoreRig:
    """Everything is in the snapshot but the last frame, and a reader has taken nothing of it."""
    made = StoreRig()
    made.open()
    made.append_ok(frame(1, records=[DeclareQueue(None, "q", True)]))
    for index in range(2, LAST + 1):
        made.append_ok(publishing(index), commit=index - 1)
    made.tell_commit(LAST)
    tick(made, 8)
    made.append_ok(frame(LAST + 1), commit=LAST)
    made.slow_streams.add(SLOW)
    made.feed(ReaderRequested(SLOW, ReadItems(SET, Epoch(1), b"")))
    made.run()
    assert len(made.read) == SMALL.chunks_unsent_max, "it is ahead of the reader by so much"
    return made


def test_bodies_and_frames_are_read_beside_a_slow_reader(rig: StoreRig) -> None:
    (read,) = rig.ask_reader(ReadContents(SET, Epoch(1), (MessageId(2),)))
    assert isinstance(read, ContentsRead)
    assert isinstance(rig.ask_reader(ReadFrames(SET, Epoch(1), LogIndex(LAST)))[0], FramesRead)
    (items, *_) = rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert isinstance(items, ItemsRead)


def test_a_log_is_cut_and_fenced_beside_a_slow_reader(rig: StoreRig) -> None:
    (cut,) = rig.ask(Truncate(SET, Epoch(2), ME, LogIndex(LAST)))
    assert isinstance(cut, Truncated)
    (fenced,) = rig.ask_reader(FenceSet(SET, Epoch(3)))
    assert isinstance(fenced, SetFenced)


def test_a_set_that_a_failure_closed_is_opened_beside_a_slow_reader(rig: StoreRig) -> None:
    def fail(_: SetName, step: AnyStep) -> None:
        if isinstance(step, SyncSegment):
            raise DiskError(DiskProblem.FAILED, "no", step)

    rig.disk.fault = fail
    assert isinstance(rig.append(frame(LAST + 2)), StoreRefused)
    rig.disk.fault = None
    (opened,) = rig.ask(OpenSet(SET, Epoch(2), ME), stream=77)
    assert isinstance(opened, SetOpened)
    take_all(rig)
    assert isinstance(rig.read[-1], ReadRefused), "what it began with was read anew"


def test_a_reader_that_goes_on_gets_the_state_that_it_began_with(rig: StoreRig) -> None:
    for index in range(LAST + 2, LAST + 40):
        rig.append_ok(publishing(index), commit=index - 1)
        tick(rig, 1)
        if index % 4 == 0:
            take_one(rig)
    take_all(rig)
    assert {answer.snapshot_index for answer in rig.read if isinstance(answer, ItemsRead)} == {LAST}
    items = [item for answer in rig.read if isinstance(answer, ItemsRead) for item in answer.items]
    assert isinstance(rig.read[-1], ItemsRead) and rig.read[-1].is_last
    assert [item.key for item in items] == sorted({item.key for item in items})
    assert sum(_is_message(item) for item in items) == LAST - 1
    tick(rig, 8)
    assert rig.core.status()[0].snapshot_index > LAST, "the consolidator has waited for it"


@pytest.mark.parametrize("leaves", [False, True])
def test_the_consolidator_does_not_wait_for_ever(rig: StoreRig, leaves: bool) -> None:
    for index in range(LAST + 2, LAST + 40):
        rig.append_ok(publishing(index), commit=index - 1)
    if leaves:
        rig.feed(StreamClosed(SLOW))
        tick(rig, 3)
    else:
        tick(rig, SMALL.silent_ticks_max)
        assert rig.core.status()[0].snapshot_index == LAST
        tick(rig, 3)
        refused = rig.read[-1]
        assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE
    assert rig.core.status()[0].snapshot_index > LAST


def take_one(rig: StoreRig) -> None:
    rig.feed(ChunkSent(SLOW))
    rig.run()


def take_all(rig: StoreRig) -> None:
    for _ in range(100):
        take_one(rig)


def _is_message(item: StateItem) -> bool:
    return item.key.startswith(b"m")
