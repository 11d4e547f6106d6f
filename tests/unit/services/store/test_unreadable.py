"""Bytes that do not come: for a moment they are waited for, and when that goes on they are damage (DESIGN R10)."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.store_protocol import (
    AcceptDamage,
    AnyStoreAnswer,
    BeginInstall,
    EndInstall,
    OpenSet,
    SetAside,
    SetOpened,
    StoreRefused,
)
from services.store.core.disk import (
    AnyStep,
    DiskError,
    DiskProblem,
    ListSegments,
    ReadMeta,
    ReadSegment,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    Step,
    SyncSegment,
    WriteMeta,
)
from services.store.core.messages import Tick
from services.store.core.requests import FramesRead, ReadFrames, ReadRefused
from services.store.directory_disk import DirectoryDisk
from services.store.snapshot_db import SnapshotDb, SnapshotFailed
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, frame
from tests.unit.services.store.test_owed import data_of
from tests.unit.services.store.test_owed import rig_with as rig_that_owes

PATIENCE = SMALL.unreadable_ticks
ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 16, scan_bytes=1 << 16)


def rig_with(count: int, commit: int = 0, **limits: int) -> StoreRig:
    rig = StoreRig(replace(ONE_SEGMENT, **limits))
    rig.open()
    for index in range(1, count + 1):
        rig.append_ok(frame(index), commit=min(index - 1, commit))
    return rig


def place_of(rig: StoreRig, data: bytes) -> tuple[int, int]:
    """(segment, offset)."""
    for number, file in sorted(rig.disk.directories[SET].segments.items()):
        if (offset := bytes(file.cached).find(data)) >= 0:
            return number, offset
    raise AssertionError("it is in no segment")


def spoil(rig: StoreRig, data: bytes) -> int:
    """The sector in which `data` begins cannot be read; answers in which segment that is."""
    number, offset = place_of(rig, data)

    def fault(set_name: SetName, step: AnyStep) -> None:
        if not isinstance(step, ReadSegment) or step.number != number:
            return
        if step.offset <= offset < step.offset + step.length:
            raise DiskError(DiskProblem.UNREADABLE, "EIO", step)

    rig.disk.fault = fault
    return number


def fail(rig: StoreRig, kind: type[Step], problem: DiskProblem = DiskProblem.UNREADABLE) -> None:
    def fault(set_name: SetName, step: AnyStep) -> None:
        if isinstance(step, kind):
            raise DiskError(problem, "EIO", step)

    rig.disk.fault = fault


def tick(rig: StoreRig, count: int = 1) -> None:
    for _ in range(count):
        rig.feed(Tick())
        rig.run()


def try_to_open(rig: StoreRig) -> AnyStoreAnswer:
    rig.stream += 1
    (answer,) = rig.ask(OpenSet(SET, Epoch(1), ME))
    return answer


def open_in_vain(rig: StoreRig, ticks: int) -> None:
    """Tries once in each."""
    for _ in range(ticks):
        answer = try_to_open(rig)
        assert isinstance(answer, StoreRefused) and answer.code is ErrorCode.UNAVAILABLE
        tick(rig)


def test_a_segment_that_cannot_be_read_for_long_is_damage_and_can_be_set_aside() -> None:
    rig = rig_with(9)
    bad = spoil(rig, frame(6))
    rig.crash(power=False)
    open_in_vain(rig, PATIENCE)
    opened = rig.open()
    assert opened.damage == f"segment {bad} cannot be read"
    (empty,) = rig.ask(SetAside(SET, Epoch(1), ME))
    assert isinstance(empty, SetOpened)
    assert (empty.log_end, empty.damage) == (0, "") and empty.disk != opened.disk
    assert rig.append_ok(frame(1)) == 1


def test_what_lies_before_the_bad_place_is_there_for_an_operator_to_go_on_with() -> None:
    """Although it lies in the same piece of a recovery's reading (R7)."""
    rig = rig_with(9, commit=8)
    spoil(rig, frame(6, commit=0))
    rig.crash(power=False)
    open_in_vain(rig, PATIENCE)
    opened = rig.open()
    assert (opened.log_end, opened.commit_index) == (5, 5), (
        "the bad group says that all before it is committed"
    )
    (accepted,) = rig.ask(AcceptDamage(SET, Epoch(1), ME))
    assert isinstance(accepted, SetOpened)
    assert (accepted.log_end, accepted.damage) == (5, "")
    _, frames, _ = rig.load()
    assert frames == [frame(index) for index in range(1, 6)]


def test_however_often_it_is_tried_a_moment_condemns_no_disk() -> None:
    rig = rig_with(9)
    spoil(rig, frame(6))
    rig.crash(power=False)
    for _ in range(PATIENCE - 1):
        for _ in range(20):
            assert isinstance(try_to_open(rig), StoreRefused)
        tick(rig)
    assert isinstance(try_to_open(rig), StoreRefused)
    rig.disk.fault = None
    opened = rig.open()
    assert (opened.log_end, opened.damage) == (9, "")


def test_failures_of_long_ago_are_not_counted() -> None:
    rig = rig_with(9)
    spoil(rig, frame(6))
    rig.crash(power=False)
    open_in_vain(rig, PATIENCE)
    tick(rig, SMALL.unreadable_forgotten_ticks)
    open_in_vain(rig, PATIENCE)
    assert rig.open().damage


@pytest.mark.parametrize("is_set_aside", [True, False])
def test_what_comes_in_place_of_a_bad_disk_is_not_condemned_for_it(is_set_aside: bool) -> None:
    rig = rig_with(9)
    if is_set_aside:
        rig.crash()
    fail(rig, ReadSnapshotMeta)
    if is_set_aside:
        open_in_vain(rig, PATIENCE)
        assert rig.open().damage
        rig.disk.fault = None
        rig.ask(SetAside(SET, Epoch(1), ME))
    else:
        close(rig)
        open_in_vain(rig, PATIENCE)
        rig.disk.fault = None
        rig.open()
        rig.ask(BeginInstall(SET, Epoch(1), ME, LogIndex(9), ((Epoch(1), LogIndex(1)),), 0))
        rig.ask(EndInstall(SET, Epoch(1), ME))
    close(rig)
    fail(rig, ReadSnapshotMeta)
    open_in_vain(rig, PATIENCE)
    rig.disk.fault = None
    assert rig.open().damage == ""


def close(rig: StoreRig) -> None:
    """By a write that fails."""
    before = rig.disk.fault
    fail(rig, SyncSegment, DiskProblem.FAILED)
    end = rig.core.status()[0].log_end
    assert isinstance(rig.append(frame(end + 1)), StoreRefused)
    rig.disk.fault = before


@pytest.mark.parametrize("kind", [SyncSegment, WriteMeta])
def test_a_write_or_a_sync_that_fails_is_never_damage(kind: type[Step]) -> None:
    rig = rig_with(3)
    fail(rig, kind, DiskProblem.FAILED)
    for epoch in range(2, 2 * PATIENCE):
        rig.stream += 1
        rig.ask(OpenSet(SET, Epoch(epoch), ME))
        rig.append(frame(4, epoch=epoch), epoch=epoch)
        tick(rig)
    rig.disk.fault = None
    assert rig.open(2 * PATIENCE).damage == ""


def test_a_segment_that_the_consolidator_cannot_read_closes_the_set_and_is_damage() -> None:
    rig = StoreRig(SMALL)
    rig.open()
    appended = 0

    def grow() -> AnyStoreAnswer:
        nonlocal appended
        appended += 1
        return rig.append(frame(appended), commit=appended - 1)

    for _ in range(10):
        grow()
    bad = spoil(rig, frame(5))
    while not isinstance(answer := grow(), StoreRefused):
        if appended % 50 == 0:
            tick(rig)
        assert appended < 2000, "the journal grows for ever"
    assert answer.code is ErrorCode.UNAVAILABLE
    assert rig.open().damage == f"segment {bad} cannot be read"


def test_a_consolidator_that_reads_in_the_end_goes_on() -> None:
    rig = rig_with(200, 200, segment_bytes=4096, unconsolidated_quiet_bytes=1, unconsolidated_bytes=1 << 20)
    spoil(rig, frame(5))
    tick(rig, PATIENCE)
    assert "disk failed" in {note.event for note in rig.notes}
    rig.disk.fault = None
    tick(rig, 3)
    assert rig.core.status()[0].snapshot_index > 100
    assert rig.append_ok(frame(201)) == 201


def test_a_reader_that_cannot_read_the_chain_closes_the_set() -> None:
    rig = rig_with(20, commit=20, unconsolidated_bytes=1 << 20, unconsolidated_quiet_bytes=1 << 20)
    bad = spoil(rig, frame(5))
    request = ReadFrames(SET, Epoch(1), LogIndex(1), LogIndex(0), 0)
    for _ in range(PATIENCE):
        *_, refused = rig.ask_reader(request)
        assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE
        tick(rig)
    assert rig.append_ok(frame(21)) == 21, "the set is open"
    rig.ask_reader(request)
    assert isinstance(rig.append(frame(22)), StoreRefused)
    assert rig.open().damage == f"segment {bad} cannot be read"


def test_an_owed_segment_that_cannot_be_read_is_lost_to_its_readers_alone() -> None:
    rig = rig_that_owes(200)
    rig.crash()
    rig.open()
    spoil(rig, data_of(50))
    request = ReadFrames(SET, Epoch(1), LogIndex(3), LogIndex(0), 0)
    for _ in range(PATIENCE):
        *_, refused = rig.ask_reader(request)
        assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE
        tick(rig)
    *_, refused = rig.ask_reader(request)
    assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.OUT_OF_RANGE
    assert rig.core.status()[0].damage == ""
    assert refused.lowest_index > 50
    *_, last = rig.ask_reader(ReadFrames(SET, Epoch(1), refused.lowest_index, LogIndex(0), 0))
    assert last == FramesRead((), True)


def test_a_snapshot_that_cannot_be_loaded_is_damage() -> None:
    rig = rig_that_owes(200)
    fail(rig, ReadSnapshotItems)
    for _ in range(PATIENCE + 1):
        assert rig.open().damage == ""
        *_, last = rig.load()
        assert isinstance(last, StoreRefused)
        tick(rig)
    opened = rig.open()
    assert (opened.log_end, opened.damage) == (0, "the snapshot cannot be read")


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(ReadSnapshotMeta, "snapshot: the snapshot cannot be read"), (ReadMeta, "the meta file was lost")],
)
def test_so_it_is_with_what_says_what_the_set_is(kind: type[Step], damage: str) -> None:
    rig = rig_that_owes(200)
    rig.crash()
    fail(rig, kind)
    open_in_vain(rig, PATIENCE)
    assert rig.open().damage == damage
    rig.disk.fault = None
    (empty,) = rig.ask(SetAside(SET, Epoch(1), ME))
    assert isinstance(empty, SetOpened) and empty.damage == ""


def test_the_disk_tells_a_read_from_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DirectoryDisk(tmp_path)
    rig = StoreRig(replace(SMALL, page_bytes=4096))
    rig.disk = disk  # type: ignore[assignment]
    rig.open()
    rig.append_ok(frame(1))

    def failing(number: int) -> Callable[..., bytes]:
        def call(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        return call

    ((number, _),) = disk.perform(SET, ListSegments())
    for what, code, step, problem in (
        ("pread", errno.EIO, ReadSegment(number, 0, 10), DiskProblem.UNREADABLE),
        ("pread", errno.ENODATA, ReadSegment(number, 0, 10), DiskProblem.UNREADABLE),
        ("pread", errno.EMFILE, ReadSegment(number, 0, 10), DiskProblem.FAILED),
        ("fdatasync", errno.EIO, SyncSegment(number), DiskProblem.FAILED),
        ("fsync", errno.EIO, ReadMeta(), DiskProblem.FAILED),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, what, failing(code))
            with pytest.raises(DiskError) as failed:
                disk.perform(SET, step)
        assert failed.value.problem is problem, step
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing(errno.EIO))
        with pytest.raises(DiskError) as failed:
            disk.perform(SET, ReadMeta())
    assert failed.value.problem is DiskProblem.UNREADABLE
    assert isinstance(failed.value.step, ReadMeta)
    disk.close()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("IO error: While pread offset 0 len 53: x.sst: Input/output error", errno.EIO),
        ("IO error: No space left on device: While appending to file: x.sst", errno.ENOSPC),
        ("IO error: While open a file for random read: x.sst: Too many open files", None),
    ],
)
def test_what_rocksdb_says_of_a_failure_is_told_by_its_number(
    tmp_path: Path, text: str, number: int | None
) -> None:
    class Failing:
        def get(self, _key: bytes) -> bytes:
            raise Exception(text)

        def close(self) -> None:
            pass

    (tmp_path / "CURRENT").touch()
    database = SnapshotDb(tmp_path)
    database._database = Failing()  # type: ignore[assignment]
    with pytest.raises(SnapshotFailed) as failed:
        database.read_meta()
    assert failed.value.errno == number
