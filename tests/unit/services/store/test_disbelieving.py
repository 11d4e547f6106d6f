"""What a store does not believe: epochs that no set comes to, frames and snapshots that no log has, that a whole disk is to be
set aside.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.core.epoch_table import EpochStarts
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import HEADER_BYTES
from lockstep.core.ids import EPOCH_MAX, INDEX_MAX, DiskId, Epoch, LogIndex, SetName
from lockstep.core.store_protocol import (
    Appended,
    BeginInstall,
    EndInstall,
    OpenSet,
    RememberMap,
    SetAside,
    SetOpened,
    StoreRefused,
    Truncate,
)
from services.broker.core.map_rebuilding import EPOCHS_LEFT_FREE
from services.store.core.appending import FRAME_INDEXES_MAX
from services.store.core.messages import ReaderRequested, Requested
from services.store.core.requests import FenceSet, ReadRefused, SetFenced, SurveySet
from services.store.core.set_lanes import REQUEST_BYTES
from services.store.core.stored_set import EPOCHS_AHEAD_MAX, EPOCHS_USUAL
from services.store.directory_disk import DirectoryDisk
from services.store.server import StoreServer
from services.store.settings import StoreSettings
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame, summed

LAST = (1 << 64) - 1
LAST_AT = 28
"""In a frame's header, where its last index begins."""


def with_log() -> StoreRig:
    rig = StoreRig()
    rig.open(3)
    rig.append_ok(frame(1, epoch=3), epoch=3)
    return rig


def highest(rig: StoreRig) -> Epoch:
    [found] = rig.ask_reader(SurveySet(SET, Epoch(0), False))
    return found.status.highest_epoch  # type: ignore[union-attr]


@pytest.mark.parametrize("epoch", [LAST, EPOCH_MAX, 1 << 62, EPOCHS_USUAL + EPOCHS_AHEAD_MAX + 1])
def test_no_fence_and_no_writer_takes_a_set_to_an_epoch_that_no_set_comes_to(epoch: int) -> None:
    rig = with_log()
    [refused] = rig.ask_reader(FenceSet(SET, Epoch(epoch)))
    assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.INVALID_ARGUMENT
    for request in (
        OpenSet(SET, Epoch(epoch), ME),
        appending(frame(2, epoch=3), epoch=epoch),
        Truncate(SET, Epoch(epoch), ME, LogIndex(0)),
        RememberMap(SET, Epoch(epoch), ME, b"", 1, "g"),
        SetAside(SET, Epoch(epoch), ME),
    ):
        [answer] = rig.ask(request)
        assert isinstance(answer, StoreRefused) and answer.code is ErrorCode.INVALID_ARGUMENT
    assert highest(rig) == 3
    assert isinstance(rig.append(frame(2, epoch=3), epoch=3), Appended), "its writer goes on"


@pytest.mark.parametrize("epoch", [4, 1 << 20, EPOCHS_USUAL, EPOCHS_USUAL + EPOCHS_AHEAD_MAX])
def test_a_disk_that_was_away_or_is_new_comes_to_its_set_however_many_reigns_there_were(epoch: int) -> None:
    for rig in (with_log(), StoreRig()):
        assert rig.open(epoch).highest_epoch == epoch


def test_a_set_goes_on_from_wherever_it_was_brought_to_by_more_than_a_rebuilt_map_leaves_free() -> None:
    rig, epoch = with_log(), EPOCHS_USUAL
    for _ in range(5):
        epoch += EPOCHS_AHEAD_MAX
        [fenced] = rig.ask_reader(FenceSet(SET, Epoch(epoch)))
        assert isinstance(fenced, SetFenced)
        [refused] = rig.ask_reader(FenceSet(SET, Epoch(epoch + EPOCHS_AHEAD_MAX + 1)))
        assert isinstance(refused, ReadRefused)
    assert EPOCHS_AHEAD_MAX > 100 * EPOCHS_LEFT_FREE


@pytest.mark.parametrize("disk", ["", "another"])
def test_a_whole_disk_is_set_aside_for_nobody_who_does_not_name_it(disk: str) -> None:
    rig = with_log()
    opened = rig.open(4)
    [refused] = rig.ask(SetAside(SET, Epoch(4), ME, DiskId(disk)))
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.ILLEGAL_STATE
    assert f"disk {opened.disk} is whole" in refused.message
    again = rig.open(4)
    assert (again.disk, again.log_end) == (opened.disk, 1)


def test_whoever_has_read_it_and_names_it_sets_it_aside() -> None:
    """R10: it lost what it had acknowledged, and does not know."""
    rig = with_log()
    opened = rig.open(4)
    [answer] = rig.ask(SetAside(SET, Epoch(4), ME, opened.disk))
    assert isinstance(answer, SetOpened) and answer.log_end == 0 and answer.disk != opened.disk


def test_a_store_has_so_many_sets_and_no_more() -> None:
    rig = StoreRig(replace(SMALL, sets_max=2))
    rig.open(1)
    other, third = SetName("second"), SetName("third")
    assert rig.ask(OpenSet(other, Epoch(1), ME), stream=70)
    [refused] = rig.ask(OpenSet(third, Epoch(1), ME), stream=71)
    assert isinstance(refused, StoreRefused) and "sets_max is 2" in refused.message
    [unread] = rig.ask_reader(FenceSet(third, Epoch(1)))
    assert isinstance(unread, ReadRefused) and unread.code is ErrorCode.UNAVAILABLE
    assert [note.limit for note in rig.notes] == ["sets_max"] * 2
    assert rig.append_ok(frame(1)) == 1


@pytest.mark.parametrize("commit", [2, 3, 50, LAST])
def test_no_frame_says_that_it_is_committed_itself(commit: int) -> None:
    """A disk that believed it would take itself for damaged when it is read again: it misses what was committed."""
    rig = with_log()
    refused = rig.append(frame(2, epoch=3, commit=commit), epoch=3)
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.INVALID_ARGUMENT
    assert isinstance(rig.append(frame(2, epoch=3, commit=1), epoch=3), Appended)
    rig.crash()
    opened = rig.open(4)
    assert (opened.log_end, opened.damage) == (2, "")


@pytest.mark.parametrize(
    "epochs",
    [
        ((2, 10), (1, 20)),
        ((1, 10), (1, 20)),
        ((1, 10), (2, 10)),
        ((1, 20), (2, 10)),
        ((1, 51),),
        ((1, 1), (4, 9)),
    ],
)
def test_no_snapshot_has_epochs_that_no_log_has(epochs: EpochStarts) -> None:
    """A disk that believed in them could not be read any more, nor any other set of its store."""
    rig = with_log()
    head = SET, Epoch(3), ME
    [refused] = rig.ask(BeginInstall(*head, LogIndex(50), epochs, 7))
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.INVALID_ARGUMENT
    [refused] = rig.ask(EndInstall(*head))
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.ILLEGAL_STATE
    assert isinstance(rig.append(frame(2, epoch=3), epoch=3), Appended), "nothing was touched"
    rig.crash()
    assert rig.open(4).log_end == 2


def test_requests_without_content_fill_the_room_for_what_waits_too() -> None:
    rig = with_log()
    rig.feed(Requested(rig.stream, appending(frame(2, epoch=3), epoch=3)))
    for _ in range(100):
        rig.feed(Requested(rig.stream, OpenSet(SET, Epoch(3), ME)))
        rig.feed(Requested(rig.stream, appending(commit=1, epoch=3)))
    assert rig.core.waiting_bytes(SET) >= 190 * REQUEST_BYTES
    rig.run()
    assert rig.core.waiting_bytes(SET) == 0


def test_no_frame_takes_more_indexes_than_a_log_has_to_give() -> None:
    rig = with_log()
    for data in (reaching(2, LAST), reaching(2, 2 + FRAME_INDEXES_MAX), reaching(INDEX_MAX, INDEX_MAX + 1)):
        refused = rig.append(data, epoch=3)
        assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.INVALID_ARGUMENT
    [refused] = rig.ask(BeginInstall(SET, Epoch(3), ME, LogIndex(LAST), ((Epoch(1), LogIndex(1)),), 7))
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.INVALID_ARGUMENT
    assert rig.append_ok(reaching(2, 1 + FRAME_INDEXES_MAX), epoch=3) == 1 + FRAME_INDEXES_MAX


def reaching(first: int, last: int) -> bytes:
    """A frame of one record, and as many indexes as it says."""
    made = frame(first, epoch=3)
    head, payload = bytearray(made[: HEADER_BYTES - 4]), made[HEADER_BYTES:]
    head[LAST_AT : LAST_AT + 8] = last.to_bytes(8, "little")
    return summed(bytes(head), payload)


async def test_however_many_sets_are_refused_they_are_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = StoreSettings(
        tmp_path / "data", f"unix:{tmp_path / 'socket'}", limits=replace(SMALL, sets_max=0)
    )
    disk = DirectoryDisk(settings.data)
    server = StoreServer(settings, disk)
    for number in range(3):
        server.feed(ReaderRequested(number, FenceSet(SetName(f"set {number}\n"), Epoch(1))))
    await server.stop()
    disk.close()
    assert caplog.messages == [
        "event=limit_reached limit=sets_max refusals=1 'set 0\\n': this store has 0 sets, sets_max is 0"
    ]
