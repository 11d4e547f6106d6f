"""One set's directory on a file system: performs the steps of `services/store/core/disk.py` for the meta file and the segments.

Law: a durable step has returned from fsync of the file and, where a name came or went, of its directory. After a failed fsync
nothing cached is believed: `SettleSegment` drops the page cache before a recovery reads.

    <set>/meta                     replaced by rename
    <set>/journal/<number>.segment
    <set>/journal/<number>.kept    was a segment, and will be another
    <set>/snapshot/                RocksDB
    <set>/aside/<disk id>/         what was set aside
"""

import contextlib
import errno
import mmap
import os
import shutil
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from services.store.core.disk import (
    CreateSegment,
    DeleteSegments,
    DiskError,
    DiskProblem,
    MoveAside,
    ReadMeta,
    ReadSegment,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    ReadSnapshotValues,
    Step,
    WriteSegment,
)
from services.store.direct_io import ALIGNED_BYTES, direct_io, takes_direct_io
from services.store.directories import sync_directory
from services.store.snapshot_db import SnapshotDb
from services.store.synced_writes import can_sync_with_write

_PIECE_BYTES = 1 << 20
"""Zeros written between two syncs while a segment is created: a whole segment at once would hold up the syncs of appends."""
_KEPT = ".kept"
"""Suffix of files that were segments and may be again."""
_PARTS_MAX = 512
"""Buffers of one pwritev; the kernel's limit is 1024."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNREADABLE = {errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EBADMSG}
"""What the kernel says of a sector that does not come, or does not pass the device's own check."""
_READING = ReadSegment, ReadSnapshotMeta, ReadSnapshotItems, ReadSnapshotValues
"""Steps that do nothing else."""


def disk_error(error: OSError, step: Step) -> DiskError:
    """What the core is told of an operating system error."""
    problem = DiskProblem.FULL if error.errno in _FULL else DiskProblem.FAILED
    if isinstance(step, _READING) and error.errno in _UNREADABLE:
        problem = DiskProblem.UNREADABLE
    return DiskError(problem, f"{type(step).__name__}: {error}", step)


class SetDirectory:
    """Lives as long as the process; its lanes call it from their threads, never two of one lane."""

    def __init__(self, path: Path, is_prefilled: bool, give_up_kept: Callable[[], None]) -> None:
        """`give_up_kept`: has all directories of the file system do so."""
        self.path = path
        self._is_prefilled = is_prefilled
        self._give_up_kept = give_up_kept
        self._journal = path / "journal"
        self._files: dict[int, int] = {}
        """Open segment files: number -> descriptor."""
        self._lock = threading.Lock()
        """Of `_files` and `_kept`, for opening, closing and keeping only."""
        self._kept: list[tuple[Path, int]] = []
        """Files that were segments and will be again: where, and how many bytes."""
        self.snapshot = SnapshotDb(path / "snapshot")

    def close(self) -> None:
        """Close everything; what was not made durable is lost at will."""
        self.snapshot.close()
        self._close_files(tuple(self._files))

    # --- meta -------------------------------------------------------------------------------------------------------

    def read_meta(self) -> bytes:
        self._make_directories()
        try:
            return (self.path / "meta").read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            problem = DiskProblem.UNREADABLE if error.errno in _UNREADABLE else DiskProblem.FAILED
            raise DiskError(problem, f"{self.path}: {error}", ReadMeta()) from error

    def write_meta(self, data: bytes) -> None:
        new = self.path / "meta.new"
        descriptor = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            _write_all(descriptor, [data], 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(new, self.path / "meta")
        sync_directory(self.path)

    def move_aside(self, step: MoveAside) -> None:
        """What a crash left in the middle is moved by the second try."""
        target = self.path / "aside" / step.label
        target.mkdir(parents=True, exist_ok=True)
        self.snapshot.close()
        self._close_files(tuple(self._files))
        for name in ("journal", "snapshot"):
            source = self.path / name
            if source.exists() and any(source.iterdir()):
                destination = target / name
                if destination.exists():
                    shutil.rmtree(destination)
                os.rename(source, destination)
        for directory in (target, target.parent):
            sync_directory(directory)
        self._make_directories()

    def _make_directories(self) -> None:
        """Names that are there already are made durable as well: whoever gave them may have died before."""
        self._journal.mkdir(parents=True, exist_ok=True)
        for directory in (self._journal, self.path, self.path.parent):
            sync_directory(directory)

    # --- segments ---------------------------------------------------------------------------------------------------

    def list_segments(self) -> tuple[tuple[int, int], ...]:
        """Files that an earlier opening kept are deleted."""
        self._kept.clear()
        for kept in self._journal.glob(f"*{_KEPT}"):
            kept.unlink(missing_ok=True)
        files = [entry for entry in os.scandir(self._journal) if entry.name.endswith(".segment")]
        return tuple(sorted((int(entry.name.split(".")[0]), entry.stat().st_size) for entry in files))

    def create_segment(self, step: CreateSegment) -> None:
        kept, path = self._take_kept(step.size_bytes), self._segment_path(step.number)
        if kept is None:
            self._make_room(step)
        self._close_files((step.number,))
        descriptor = os.open(kept or path, os.O_RDWR if kept else os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            if kept is None:
                self._preallocate(descriptor, step.size_bytes, self._is_prefilled and step.is_prefilled)
            _write_all(descriptor, [step.header], 0)
            os.fsync(descriptor)
            if kept is not None:
                os.rename(kept, path)
            sync_directory(self._journal)
        except OSError:
            os.close(descriptor)
            for left in (kept, path):
                if left is not None:
                    left.unlink(missing_ok=True)
            raise
        with self._lock:
            self._files[step.number] = descriptor

    def _take_kept(self, size_bytes: int) -> Path | None:
        """A file that was kept, if there is one of that size."""
        with self._lock:
            found = next((kept for kept in self._kept if kept[1] == size_bytes), None)
            if found is None:
                return None
            self._kept.remove(found)
            return found[0]

    def _make_room(self, step: CreateSegment) -> None:
        """Gives up what was kept, here and by other sets, if there is no room otherwise. Raises `DiskError`, FULL."""
        wanted = step.size_bytes + step.reserve_bytes
        if self.room(wanted) < wanted:
            message = f"{self.path}: no room for a segment beside the reserve"
            raise DiskError(DiskProblem.FULL, message, step)

    def room(self, wanted_bytes: int) -> int:
        """Free bytes of the file system; while they are fewer than wanted no set keeps a file."""
        free_bytes = self.free_bytes()
        if free_bytes < wanted_bytes:
            self._give_up_kept()
            free_bytes = self.free_bytes()
        return free_bytes

    def free_bytes(self) -> int:
        room = os.statvfs(self._journal)
        return room.f_bavail * room.f_frsize

    def write_segment(self, step: WriteSegment, is_synced: bool = False) -> None:
        """`is_synced`: it is durable when this returns, as by `sync_segment`; in one call where that is known to do."""
        parts = list(step.parts)
        if len(parts) > _PARTS_MAX:
            parts = [b"".join(parts)]
        in_one_call = is_synced and self._can_sync_with_write
        _write_all(self._file(step.number), parts, step.offset, os.RWF_DSYNC if in_one_call else 0)
        if is_synced and not in_one_call:
            self.sync_segment(step.number)

    @cached_property
    def _can_sync_with_write(self) -> bool:
        return can_sync_with_write(self._journal)

    def sync_segment(self, number: int) -> None:
        os.fdatasync(self._file(number))

    def settle_segment(self, number: int) -> None:
        descriptor = self._file(number)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read_segment(self, step: ReadSegment) -> bytes:
        descriptor, pieces, offset, left = self._file(step.number), [], step.offset, step.length
        while left > 0:
            piece = os.pread(descriptor, left, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, left = offset + len(piece), left - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def delete_segments(self, step: DeleteSegments) -> None:
        self._close_files(step.numbers)
        for number in step.numbers:
            path = self._segment_path(number)
            if not step.kept_max:
                path.unlink(missing_ok=True)
            elif path.exists():
                kept = path.with_suffix(_KEPT)
                os.rename(path, kept)
                with self._lock:
                    self._kept.append((kept, kept.stat().st_size))
        self.forget_kept(step.kept_max)

    def forget_kept(self, kept_max: int) -> None:
        """Delete the oldest: one of a size that is not asked for does not stay for ever."""
        with self._lock:
            count = max(len(self._kept) - kept_max, 0)
            excess, self._kept = self._kept[:count], self._kept[count:]
        for kept, _ in excess:
            kept.unlink(missing_ok=True)

    def _preallocate(self, descriptor: int, size_bytes: int, is_prefilled: bool) -> None:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
        else:
            if not is_prefilled:
                return
        is_direct = size_bytes % ALIGNED_BYTES == 0 and takes_direct_io(self._journal)
        # Not closed by hand: who hears of a failing write still holds a view of it.
        zeros = memoryview(mmap.mmap(-1, _PIECE_BYTES))
        with direct_io(descriptor) if is_direct else contextlib.nullcontext():
            for offset in range(0, size_bytes, _PIECE_BYTES):
                _write_all(descriptor, [zeros[: size_bytes - offset]], offset)
                os.fdatasync(descriptor)

    def _segment_path(self, number: int) -> Path:
        return self._journal / f"{number:016d}.segment"

    def _file(self, number: int) -> int:
        descriptor = self._files.get(number)
        if descriptor is None:
            with self._lock:
                if number not in self._files:
                    self._files[number] = os.open(self._segment_path(number), os.O_RDWR)
                descriptor = self._files[number]
        return descriptor

    def _close_files(self, numbers: tuple[int, ...]) -> None:
        with self._lock:
            for number in numbers:
                descriptor = self._files.pop(number, None)
                if descriptor is not None:
                    os.close(descriptor)


def _write_all(descriptor: int, parts: "list[bytes] | list[memoryview]", offset: int, flags: int = 0) -> None:
    """pwritev until everything is written: a nearly full disk takes a part, and says ENOSPC at the next call."""
    left: list[memoryview] = [memoryview(part) for part in parts]
    while left:
        written = os.pwritev(descriptor, left, offset, flags)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left[0])
            del left[0]
        if left and written:
            left[0] = left[0][written:]
