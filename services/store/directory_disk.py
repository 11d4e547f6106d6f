"""A data directory: the `Disk` of the store's core on a real file system. One process at a time.

Law: `perform` returns when a step is done, durably where the step says so, and raises nothing but `DiskError` for what a disk
can do; anything else is our own bug and stops the process.
"""

import fcntl
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, assert_never
from urllib.parse import quote, unquote

from lockstep.core.ids import DiskId, SetName
from services.store.core.disk import (
    AnyStep,
    Compute,
    CreateSegment,
    DeleteSegments,
    DiskError,
    DiskProblem,
    ListSegments,
    MakeDiskId,
    MeasureRoom,
    MoveAside,
    ReadMeta,
    ReadSegment,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    ReadSnapshotValues,
    SettleSegment,
    SnapshotClear,
    SnapshotFlush,
    SnapshotWrite,
    StepResult,
    SyncSegment,
    WriteMeta,
    WriteSegment,
)
from services.store.directories import sync_directory
from services.store.set_directory import SetDirectory, disk_error
from services.store.snapshot_db import SnapshotCorrupt

_Step = TypeVar("_Step", bound=AnyStep)
_Result = TypeVar("_Result")
_PREFIX = "set-"
"""Of the directory of a set; keeps "." and ".." from being names of directories that are there already."""


class DirectoryInUse(Exception):
    """Another store has this data directory."""


class DirectoryDisk:
    """Lives as long as the process, which drives it from the threads of its lanes."""

    def __init__(self, root: Path, is_prefilled: bool = True) -> None:
        """Makes `root` if it is not there, and locks it; raises `DirectoryInUse`."""
        self._root = root
        self._is_prefilled = is_prefilled
        (root / "sets").mkdir(parents=True, exist_ok=True)
        # Though it was there: whoever made it may have died before.
        sync_directory(root)
        sync_directory(root.parent)
        self._lock_file = os.open(root / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock_file)
            raise DirectoryInUse(f"{root} is used by another store") from error
        self._sets: dict[SetName, SetDirectory] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        for directory in self._sets.values():
            directory.close()
        os.close(self._lock_file)

    def set_names(self) -> list[SetName]:
        """All sets that have a directory, in order of their names."""
        found = (path.name for path in (self._root / "sets").iterdir() if path.is_dir())
        return sorted(SetName(unquote(name[len(_PREFIX) :])) for name in found if name.startswith(_PREFIX))

    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        """Performs one step; raises `DiskError`."""
        return _told(self._perform, set_name, step)

    def write_and_sync(self, set_name: SetName, step: WriteSegment) -> None:
        """Writes and makes durable in one call of the operating system; raises `DiskError`."""
        _told(self._write_and_sync, set_name, step)

    def _write_and_sync(self, set_name: SetName, step: WriteSegment) -> None:
        self._directory(set_name).write_segment(step, is_synced=True)

    def _directory(self, set_name: SetName) -> SetDirectory:
        if (found := self._sets.get(set_name)) is not None:
            return found
        with self._lock:
            if set_name not in self._sets:
                path = self._root / "sets" / f"{_PREFIX}{quote(set_name, safe='')}"
                self._sets[set_name] = SetDirectory(path, self._is_prefilled, self._give_up_kept)
            return self._sets[set_name]

    def _give_up_kept(self) -> None:
        """The sets share a file system: what one keeps for its next segments is room that another may need now."""
        for directory in tuple(self._sets.values()):
            directory.forget_kept(0)

    def _perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        directory = self._directory(set_name)
        match step:
            case MeasureRoom(wanted_bytes):
                return directory.room(wanted_bytes)
            case WriteSegment():
                directory.write_segment(step)
            case SyncSegment(number):
                directory.sync_segment(number)
            case ReadSegment():
                return directory.read_segment(step)
            case CreateSegment():
                directory.create_segment(step)
            case DeleteSegments():
                directory.delete_segments(step)
            case ListSegments():
                return directory.list_segments()
            case SettleSegment(number):
                directory.settle_segment(number)
            case ReadMeta():
                return directory.read_meta()
            case WriteMeta(data):
                directory.write_meta(data)
            case MakeDiskId():
                return DiskId(str(uuid.uuid4()))
            case MoveAside():
                directory.move_aside(step)
            case ReadSnapshotMeta():
                return directory.snapshot.read_meta()
            case ReadSnapshotItems(from_key, bytes_max):
                return directory.snapshot.read_items(from_key, bytes_max)
            case ReadSnapshotValues(keys):
                return directory.snapshot.read_values(keys)
            case SnapshotWrite(puts, deletes, meta):
                directory.snapshot.write(puts, deletes, meta)
            case SnapshotFlush():
                directory.snapshot.flush()
            case SnapshotClear():
                directory.snapshot.clear()
            case Compute(function=function):
                return function()
            case _:
                assert_never(step)
        return None


def _told(do: Callable[[SetName, _Step], _Result], set_name: SetName, step: _Step) -> _Result:
    """What goes wrong is a `DiskError` that names the step."""
    try:
        return do(set_name, step)
    except DiskError as error:
        error.step = error.step or step
        raise
    except OSError as error:
        raise disk_error(error, step) from error
    except SnapshotCorrupt as error:
        raise DiskError(DiskProblem.CORRUPT, str(error), step) from error
