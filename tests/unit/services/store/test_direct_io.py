"""Writing past the page cache, and file systems that do not know it."""

import errno
import os
from pathlib import Path

import pytest

from services.store.core.disk import CreateSegment, ReadSegment
from services.store.core.journal_format import END, encode_segment_header
from services.store.direct_io import ALIGNED_BYTES, takes_direct_io
from services.store.set_directory import SetDirectory
from services.store.snapshot_db import SnapshotDb

SIZES = pytest.mark.parametrize("size_bytes", [3 << 20, (3 << 20) + 700, ALIGNED_BYTES])


@pytest.fixture
def without_direct_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system refuses it, as some do when a file is opened."""
    real = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)


def test_the_question_leaves_nothing_behind(tmp_path: Path) -> None:
    takes_direct_io(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_direct_io")
def test_a_file_system_that_refuses_it_does_not_take_it(tmp_path: Path) -> None:
    assert not takes_direct_io(tmp_path)
    assert list(tmp_path.iterdir()) == []


def check_new_segment(path: Path, size_bytes: int) -> None:
    directory = SetDirectory(path, is_prefilled=True, give_up_kept=lambda: None)
    directory.read_meta()
    header = encode_segment_header(7, 1, size_bytes) + END
    directory.create_segment(CreateSegment(1, size_bytes, header, 0))
    assert directory.read_segment(ReadSegment(1, 0, size_bytes + 1)) == header.ljust(size_bytes, b"\0")
    directory.close()


@SIZES
def test_a_new_segment_is_its_header_and_zeros(tmp_path: Path, size_bytes: int) -> None:
    check_new_segment(tmp_path / "set", size_bytes)


@SIZES
@pytest.mark.usefixtures("without_direct_io")
def test_so_it_is_without_direct_io(tmp_path: Path, size_bytes: int) -> None:
    check_new_segment(tmp_path / "set", size_bytes)


@pytest.mark.usefixtures("without_direct_io")
def test_a_snapshot_works_without_direct_io(tmp_path: Path) -> None:
    database = SnapshotDb(tmp_path / "snapshot")
    database.write((), (), b"meta")
    database.flush()
    database.close()
    assert SnapshotDb(tmp_path / "snapshot").read_meta() == b"meta"


def test_a_disk_that_fails_while_zeros_are_written_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, directory = os.pwritev, SetDirectory(tmp_path / "set", is_prefilled=True, give_up_kept=lambda: None)
    directory.read_meta()

    def failing(descriptor: int, parts: list[memoryview], offset: int, flags: int = 0) -> int:
        if offset > 0:
            raise OSError(errno.EIO, "a bad sector")
        return real(descriptor, parts, offset, flags)

    monkeypatch.setattr(os, "pwritev", failing)
    with pytest.raises(OSError, match="a bad sector"):
        directory.create_segment(CreateSegment(1, 3 << 20, b"header", 0))
    assert list((tmp_path / "set" / "journal").iterdir()) == []
