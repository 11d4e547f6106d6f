"""Segments on a real file system: files that are used again, and what becomes of them when something fails."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.core.ids import Epoch, SetName
from lockstep.core.store_protocol import SetAside
from services.store import set_directory
from services.store.core.disk import (
    CreateSegment,
    DeleteSegments,
    DiskError,
    DiskProblem,
    ListSegments,
    MeasureRoom,
    MoveAside,
    ReadMeta,
    ReadSegment,
    SyncSegment,
    WriteMeta,
    WriteSegment,
)
from services.store.core.journal_format import END, encode_segment_header
from services.store.directory_disk import DirectoryDisk
from services.store.set_directory import SetDirectory
from tests.unit.services.store.full_files import files_that_do_not_grow
from tests.unit.services.store.store_rig import ME, SET, StoreRig, frame

SIZE = 4096
OTHER = SetName("invoices")
STALE = b"a group of an older segment"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DirectoryDisk]:
    made = DirectoryDisk(tmp_path)
    made.perform(SET, ReadMeta())
    yield made
    made.close()


def journal(tmp_path: Path) -> Path:
    return tmp_path / "sets" / f"set-{SET}" / "journal"


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in journal(tmp_path).iterdir())


def header(number: int, size: int = SIZE) -> bytes:
    return encode_segment_header(7, number, size) + END


def create(disk: DirectoryDisk, number: int, size: int = SIZE, reserve: int = 0) -> None:
    disk.perform(SET, CreateSegment(number, size, header(number, size), reserve))
    disk.perform(SET, WriteSegment(number, 200, (STALE,)))
    disk.perform(SET, SyncSegment(number))


def read(disk: DirectoryDisk, number: int) -> bytes:
    data = disk.perform(SET, ReadSegment(number, 0, 2 * SIZE))
    assert isinstance(data, bytes)
    return data


def test_a_deleted_segments_file_is_the_next_one_of_its_size(disk: DirectoryDisk, tmp_path: Path) -> None:
    create(disk, 1)
    create(disk, 2)
    inode = (journal(tmp_path) / f"{1:016d}.segment").stat().st_ino
    disk.perform(SET, DeleteSegments((1,), 2))
    assert names(tmp_path) == ["1.kept", "2.segment"]
    with pytest.raises(DiskError):
        read(disk, 1)
    disk.perform(SET, CreateSegment(3, SIZE, header(3), 0))
    assert names(tmp_path) == ["2.segment", "3.segment"]
    assert (journal(tmp_path) / f"{3:016d}.segment").stat().st_ino == inode
    data = read(disk, 3)
    assert len(data) == SIZE
    assert data.startswith(header(3))
    assert data[200:].startswith(STALE)
    assert read(disk, 2).startswith(header(2))
    assert disk.perform(SET, ListSegments()) == ((2, SIZE), (3, SIZE))


def test_a_file_of_another_size_is_not_used_and_does_not_stay_for_ever(
    disk: DirectoryDisk, tmp_path: Path
) -> None:
    for number, size in (1, 2 * SIZE), (2, 2 * SIZE), (3, SIZE), (4, SIZE):
        create(disk, number, size)
    disk.perform(SET, DeleteSegments((1, 2), 2))
    create(disk, 5)
    assert names(tmp_path) == ["1.kept", "2.kept", "3.segment", "4.segment", "5.segment"]
    disk.perform(SET, DeleteSegments((3, 4), 2))
    assert names(tmp_path) == ["3.kept", "4.kept", "5.segment"]


def test_as_many_files_are_kept_as_may_be(disk: DirectoryDisk, tmp_path: Path) -> None:
    for number in range(1, 6):
        create(disk, number)
    disk.perform(SET, DeleteSegments((1, 2, 3), 2))
    assert names(tmp_path) == ["2.kept", "3.kept", "4.segment", "5.segment"]
    disk.perform(SET, DeleteSegments((4,), 0))
    assert names(tmp_path) == ["5.segment"]
    create(disk, 6)
    assert read(disk, 6)[len(header(6)) : 200] == bytes(200 - len(header(6)))


@pytest.fixture
def two_sets(disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryDisk:
    """On a file system with room for ten segments; one has had a burst, and keeps three files of it."""

    def free_bytes(_: SetDirectory) -> int:
        return 10 * SIZE - sum(file.stat().st_size for file in tmp_path.glob("sets/*/journal/*"))

    monkeypatch.setattr(SetDirectory, "free_bytes", free_bytes)
    disk.perform(OTHER, ReadMeta())
    for number in range(1, 5):
        create(disk, number)
    disk.perform(SET, DeleteSegments((1, 2, 3), 3))
    return disk


def test_what_an_idle_set_keeps_is_given_up_before_another_gets_no_room(
    two_sets: DirectoryDisk, tmp_path: Path
) -> None:
    for number in range(1, 9):
        two_sets.perform(OTHER, CreateSegment(number, SIZE, header(number), SIZE))
    with pytest.raises(DiskError) as failed:
        two_sets.perform(OTHER, CreateSegment(9, SIZE, header(9), SIZE))
    assert failed.value.problem is DiskProblem.FULL
    assert names(tmp_path) == ["4.segment"]


@pytest.mark.parametrize(("wanted", "free"), [(6 * SIZE, 6 * SIZE), (7 * SIZE, 9 * SIZE)])
def test_nothing_is_kept_by_any_set_while_less_is_free_than_is_wanted(
    two_sets: DirectoryDisk, wanted: int, free: int
) -> None:
    assert two_sets.perform(OTHER, MeasureRoom(wanted)) == free


def test_whoever_opens_finds_no_file_that_was_kept(disk: DirectoryDisk, tmp_path: Path) -> None:
    create(disk, 1)
    create(disk, 2)
    disk.perform(SET, DeleteSegments((1,), 2))
    (journal(tmp_path) / "0000000000000009.kept").write_bytes(b"of a process that is gone")
    assert disk.perform(SET, ListSegments()) == ((2, SIZE),)
    assert names(tmp_path) == ["2.segment"]
    create(disk, 3)
    assert read(disk, 3)[len(header(3)) : 200] == bytes(200 - len(header(3)))


def test_what_is_set_aside_has_no_such_file(disk: DirectoryDisk, tmp_path: Path) -> None:
    create(disk, 1)
    create(disk, 2)
    disk.perform(SET, DeleteSegments((1,), 2))
    disk.perform(SET, ListSegments())
    disk.perform(SET, MoveAside("old"))
    assert names(tmp_path) == []
    create(disk, 3)
    assert names(tmp_path) == ["3.segment"]


def test_a_kept_file_needs_no_room_and_makes_room_for_others(
    disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in 1, 2, 3:
        create(disk, number)
    disk.perform(SET, DeleteSegments((1, 2), 2))
    monkeypatch.setattr(
        SetDirectory,
        "free_bytes",
        lambda _: SIZE * (3 - len([name for name in names(tmp_path) if name.endswith(".kept")])),
    )
    create(disk, 4, reserve=1 << 40)
    assert names(tmp_path) == ["2.kept", "3.segment", "4.segment"]
    create(disk, 5, size=3 * SIZE)
    assert names(tmp_path) == ["3.segment", "4.segment", "5.segment"]
    with pytest.raises(DiskError) as full:
        create(disk, 6, size=4 * SIZE)
    assert full.value.problem is DiskProblem.FULL
    assert names(tmp_path) == ["3.segment", "4.segment", "5.segment"]


def failing(wanted: int, call: Callable[..., object], number: int) -> Callable[..., object]:
    """`call`, but its `wanted`th call fails."""
    count = 0

    def called(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == wanted:
            raise OSError(number, os.strerror(number))
        return call(*arguments)

    return called


def test_what_is_written_and_synced_at_once_stands_and_a_failure_is_told(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(disk, 1)
    disk.write_and_sync(SET, WriteSegment(1, 200, (b"one", b"two")))
    assert read(disk, 1)[200:206] == b"onetwo"
    monkeypatch.setattr(os, "pwritev", failing(2, lambda *_: 1, errno.EIO))
    with pytest.raises(DiskError) as failed:
        disk.write_and_sync(SET, WriteSegment(1, 300, (b"one",)))
    assert failed.value.problem is DiskProblem.FAILED
    assert isinstance(failed.value.step, WriteSegment)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("what", ["pwritev", "fsync", "rename", "sync_directory"])
def test_a_failure_leaves_neither_the_file_nor_a_segment(
    disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    create(disk, 1)
    create(disk, 2)
    disk.perform(SET, DeleteSegments((1,), 2))
    module = set_directory if what == "sync_directory" else os
    with monkeypatch.context() as patch:
        patch.setattr(module, what, failing(1, getattr(module, what), number))
        with pytest.raises(DiskError) as failed:
            disk.perform(SET, CreateSegment(3, SIZE, header(3), 0))
    assert failed.value.problem is (DiskProblem.FULL if number == errno.ENOSPC else DiskProblem.FAILED)
    assert names(tmp_path) == ["2.segment"]
    create(disk, 3)
    assert read(disk, 3)[len(header(3)) : 200] == bytes(200 - len(header(3)))
    assert disk.perform(SET, ListSegments()) == ((2, SIZE), (3, SIZE))


def test_lanes_create_and_delete_at_once(disk: DirectoryDisk, tmp_path: Path) -> None:
    """Each file has one name, and no descriptor is that of another one."""
    rounds = 40
    for number in range(1, 6):
        create(disk, number)
    may_delete = threading.Semaphore(0)
    failures: list[BaseException] = []

    def delete() -> None:
        try:
            for number in range(1, rounds + 1):
                assert may_delete.acquire(timeout=30)
                disk.perform(SET, DeleteSegments((number,), 2))
        except BaseException as error:
            failures.append(error)

    deleter = threading.Thread(target=delete)
    deleter.start()
    for number in range(6, rounds + 6):
        may_delete.release()
        create(disk, number)
        assert read(disk, number).startswith(header(number))
    deleter.join(30)
    assert not failures
    left = [f"{number}.segment" for number in range(rounds + 1, rounds + 6)]
    assert sorted(set(names(tmp_path)) - set(left)) == [
        name for name in names(tmp_path) if name.endswith(".kept")
    ]
    for number in range(rounds + 1, rounds + 6):
        data = read(disk, number)
        assert data.startswith(header(number))
        assert len(data) == SIZE


def test_a_meta_file_of_which_only_a_part_could_be_written_does_not_replace_the_old_one(
    disk: DirectoryDisk,
) -> None:
    disk.perform(SET, WriteMeta(b"old"))
    with files_that_do_not_grow(4096), pytest.raises(DiskError):
        disk.perform(SET, WriteMeta(bytes(5000)))
    assert disk.perform(SET, ReadMeta()) == b"old"


def test_what_was_set_aside_under_no_name_stays_when_that_happens_again(
    disk: DirectoryDisk, tmp_path: Path
) -> None:
    for turn in range(2):
        rig = StoreRig(disk=disk)  # type: ignore[arg-type]
        rig.open(turn + 1)
        rig.append_ok(frame(1, epoch=turn + 1), epoch=turn + 1)
        disk.perform(SET, WriteMeta(b"rubbish"))
        rig = StoreRig(disk=disk)  # type: ignore[arg-type]
        assert rig.open(turn + 1).damage
        rig.ask(SetAside(SET, Epoch(turn + 1), ME))
    assert len(list((tmp_path / "sets" / f"set-{SET}" / "aside").rglob("*.segment"))) == 2
