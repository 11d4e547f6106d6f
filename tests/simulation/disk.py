"""A disk in memory that a store's core runs on, with what crashes do to real ones.

Law: what a durable step (`services/store/core/disk.py`) has made durable survives everything here but the faults that are
named so. What was not made durable survives the death of a process, except snapshot writes, which sit in the process's memory;
at a power loss each written sector of 512 bytes is kept or lost by itself, deleted files may come back, and snapshot writes
survive as some prefix.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from lockstep.core.ids import DiskId, LogIndex, SetName
from lockstep.core.store_protocol import StateItem
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
    SnapshotStep,
    SnapshotWrite,
    StepResult,
    SyncSegment,
    WriteMeta,
    WriteSegment,
)

SECTOR_BYTES = 512


@dataclass
class VirtualFile:
    """One segment file: what is on the disk, and what a reader sees."""

    durable: bytearray
    cached: bytearray
    dirty: set[int] = field(default_factory=set)
    """Sectors in which they differ, or may."""

    def write(self, offset: int, data: bytes) -> None:
        self.cached[offset : offset + len(data)] = data
        self.dirty.update(range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1))

    def sync(self) -> None:
        for sector in self.dirty:
            begin = sector * SECTOR_BYTES
            self.durable[begin : begin + SECTOR_BYTES] = self.cached[begin : begin + SECTOR_BYTES]
        self.dirty.clear()

    def lose_power(self, chance: random.Random) -> None:
        """Of the unsynced sectors none, all, or any survive: runs are as likely as single ones."""
        kept_share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for sector in sorted(self.dirty):
            if chance.random() < kept_share:
                begin = sector * SECTOR_BYTES
                self.durable[begin : begin + SECTOR_BYTES] = self.cached[begin : begin + SECTOR_BYTES]
        self.cached[:] = self.durable
        self.dirty.clear()


@dataclass
class VirtualSnapshot:
    """The snapshot's items and meta, as last flushed and as written since."""

    flushed: dict[bytes, StateItem] = field(default_factory=dict)
    flushed_meta: bytes = b""
    items: dict[bytes, StateItem] = field(default_factory=dict)
    meta: bytes = b""
    unflushed: list[SnapshotWrite] = field(default_factory=list)
    is_given_up: bool = False
    """A step has failed, and nobody has read since what is left."""

    def write(self, batch: SnapshotWrite) -> None:
        self.unflushed.append(batch)
        for item in batch.puts:
            self.items[item.key] = item
        for key in batch.deletes:
            self.items.pop(key, None)
        self.meta = batch.meta or self.meta

    def flush(self) -> None:
        self.flushed, self.flushed_meta = dict(self.items), self.meta
        self.unflushed.clear()

    def give_up(self, chance: random.Random) -> None:
        """As after an error: a prefix of what was not flushed is left, for whoever asks."""
        self.crash(chance)
        self.is_given_up = True

    def crash(self, chance: random.Random) -> None:
        """A prefix of what was not flushed is there afterwards."""
        kept = self.unflushed[: chance.randint(0, len(self.unflushed))]
        self.items, self.meta = dict(self.flushed), self.flushed_meta
        self.unflushed = []
        for batch in kept:
            self.write(batch)
        self.flush()
        self.is_given_up = False


@dataclass
class VirtualDirectory:
    """One set's directory."""

    meta: bytes = b""
    segments: dict[int, VirtualFile] = field(default_factory=dict)
    deleted: dict[int, VirtualFile] = field(default_factory=dict)
    """May come back at a power loss, until the directory is synced."""
    kept: list[VirtualFile] = field(default_factory=list)
    """Of deleted segments, to be segments again."""
    snapshot: VirtualSnapshot = field(default_factory=VirtualSnapshot)
    aside: list[str] = field(default_factory=list)

    def kept_of(self, size_bytes: int) -> VirtualFile | None:
        return next((file for file in self.kept if len(file.durable) == size_bytes), None)

    def take_kept(self, taken: VirtualFile) -> None:
        """It is to have another name."""
        self.kept = [file for file in self.kept if file is not taken]
        self.deleted = {number: file for number, file in self.deleted.items() if file is not taken}


class VirtualDisk:
    """One data directory. Lives through the crashes of the processes that use it; `perform` as
    `services.store.core.disk.Disk`.
    """

    def __init__(self, name: str = "disk") -> None:
        self.name = name
        self.directories: dict[SetName, VirtualDirectory] = {}
        self.free_bytes = 1 << 40
        """New segments, and nothing else, use it up."""
        self.fault: Callable[[SetName, AnyStep], None] | None = None
        """Called before every step; raises `DiskError` for one that is to fail."""
        self.is_syncing = True
        """False: a lying disk whose syncs do nothing. For proving that tests notice."""
        self.gone: dict[SetName, LogIndex] = {}
        """For the checkers: what is at or below need not be here, by set. A snapshot took its place, or a limit was reached."""
        self.segments_recycled = 0
        """Created of what others had left."""
        self._disk_ids = 0
        self._chance = random.Random(name)
        """What a failed step takes."""

    def kill(self, chance: random.Random) -> None:
        """The process died; the machine lives."""
        for directory in self._sorted():
            directory.snapshot.crash(chance)

    def lose_power(self, chance: random.Random) -> None:
        """Everything that was not made durable is at the mercy of `chance`."""
        for directory in self._sorted():
            directory.snapshot.crash(chance)
            for number, file in sorted(directory.deleted.items()):
                if number not in directory.segments and chance.random() < 0.5:
                    directory.segments[number] = file
                    directory.kept = [kept for kept in directory.kept if kept is not file]
            directory.deleted.clear()
            for _, file in sorted(directory.segments.items()):
                file.lose_power(chance)

    def interrupt(self, set_name: SetName, step: AnyStep, chance: random.Random) -> None:
        """The process died in the middle of this step: leave what such a step may leave. Then comes `kill` or `lose_power`."""
        directory = self.directories.setdefault(set_name, VirtualDirectory())
        match step:
            case CreateSegment(number, size_bytes, header, _) if kept := directory.kept_of(size_bytes):
                # Under its old name, the new one or none; the old one may be back after a power loss.
                kept.write(0, header)
                if chance.random() < 0.5:
                    kept.sync()
                    directory.take_kept(kept)
                    directory.segments[number] = kept
            case CreateSegment(number, size_bytes, _, _):
                size = chance.choice((0, size_bytes // 2, size_bytes))
                directory.segments[number] = VirtualFile(bytearray(size), bytearray(size))
            case DeleteSegments(numbers, kept_max):
                some = tuple(number for number in numbers if chance.random() < 0.5)
                self._perform_segment(directory, DeleteSegments(some, kept_max))
            case WriteSegment(number, offset, parts):
                data = b"".join(parts)
                directory.segments[number].write(offset, data[: chance.randint(1, len(data))])
            case WriteMeta() | SyncSegment() | SettleSegment() | SnapshotWrite() | SnapshotFlush():
                if chance.random() < 0.5:
                    self.perform(set_name, step)
            case _:
                pass

    def flip_bit(self, set_name: SetName, number: int, offset: int, bit: int) -> None:
        """Damage a segment, as a failing disk does."""
        file = self.directories[set_name].segments[number]
        file.durable[offset] ^= 1 << bit
        file.cached[:] = file.durable

    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        """Performs one step at once; raises `DiskError`."""
        directory = self.directories.setdefault(set_name, VirtualDirectory())
        try:
            if self.fault is not None:
                self.fault(set_name, step)
            return self._perform(directory, step)
        except DiskError as error:
            error.step = error.step or step
            if isinstance(step, SnapshotStep):
                directory.snapshot.give_up(self._chance)
            raise

    def _perform(self, directory: VirtualDirectory, step: AnyStep) -> StepResult:
        if isinstance(step, WriteSegment | SyncSegment | ReadSegment):  # most are
            return self._perform_segment(directory, step)
        match step:
            case ReadMeta():
                return directory.meta
            case WriteMeta(data):
                directory.meta = data
            case MakeDiskId():
                self._disk_ids += 1
                return DiskId(f"{self.name}-{self._disk_ids}")
            case MeasureRoom(wanted_bytes):
                return self._room(wanted_bytes)
            case MoveAside(label):
                directory.aside.append(label)
                directory.segments, directory.deleted, directory.kept = {}, {}, []
                directory.snapshot = VirtualSnapshot()
            case Compute(function=function):
                return function()
            case (
                ReadSnapshotMeta()
                | ReadSnapshotItems()
                | ReadSnapshotValues()
                | SnapshotWrite()
                | SnapshotFlush()
                | SnapshotClear()
            ):
                return self._perform_snapshot(directory, step)
            case _:
                return self._perform_segment(directory, step)
        return None

    def _perform_segment(
        self,
        directory: VirtualDirectory,
        step: ListSegments
        | CreateSegment
        | WriteSegment
        | SyncSegment
        | SettleSegment
        | ReadSegment
        | DeleteSegments,
    ) -> StepResult:
        match step:
            case ListSegments():
                self._forget_kept(directory, 0)
                return tuple(
                    (number, len(file.durable)) for number, file in sorted(directory.segments.items())
                )
            case CreateSegment(number, size_bytes, header, reserve_bytes):
                kept = directory.kept_of(size_bytes)
                if kept is not None:
                    directory.take_kept(kept)
                    self.segments_recycled += 1
                else:
                    if self._room(size_bytes + reserve_bytes) < size_bytes + reserve_bytes:
                        raise DiskError(DiskProblem.FULL, "no room for a segment", step)
                    self.free_bytes -= size_bytes
                content = header + (kept.cached[len(header) :] if kept else bytes(size_bytes - len(header)))
                directory.segments[number] = VirtualFile(bytearray(content), bytearray(content))
                directory.deleted.clear()
            case WriteSegment(number, offset, parts):
                data = b"".join(parts)
                file = directory.segments[number]
                assert offset + len(data) <= len(file.cached), (
                    f"{step.number}: a write behind the end of the file"
                )
                file.write(offset, data)
            case SyncSegment(number) | SettleSegment(number):
                if self.is_syncing:
                    directory.segments[number].sync()
            case ReadSegment(number, offset, length):
                return bytes(directory.segments[number].cached[offset : offset + length])
            case DeleteSegments(numbers, kept_max):
                for number in numbers:
                    found = directory.segments.pop(number, None)
                    if found is not None:
                        directory.deleted[number] = found
                    if found is not None and kept_max:
                        directory.kept.append(found)
                    elif found is not None:
                        self.free_bytes += len(found.durable)
                self._forget_kept(directory, kept_max)
            case _:
                assert_never(step)
        return None

    def _room(self, wanted_bytes: int) -> int:
        """As a real one: no set keeps files while fewer bytes are free."""
        if self.free_bytes < wanted_bytes:
            for directory in self._sorted():
                self._forget_kept(directory, 0)
        return self.free_bytes

    def _forget_kept(self, directory: VirtualDirectory, kept_max: int) -> None:
        """The oldest."""
        count = max(len(directory.kept) - kept_max, 0)
        self.free_bytes += sum(len(file.durable) for file in directory.kept[:count])
        del directory.kept[:count]

    @staticmethod
    def _perform_snapshot(
        directory: VirtualDirectory,
        step: ReadSnapshotMeta
        | ReadSnapshotItems
        | ReadSnapshotValues
        | SnapshotWrite
        | SnapshotFlush
        | SnapshotClear,
    ) -> StepResult:
        snapshot = directory.snapshot
        if snapshot.is_given_up and not isinstance(step, ReadSnapshotMeta | SnapshotClear):
            raise DiskError(DiskProblem.FAILED, "a step failed before this one", step)
        match step:
            case ReadSnapshotMeta():
                snapshot.is_given_up = False
                return snapshot.meta
            case ReadSnapshotItems(from_key, bytes_max):
                keys = sorted(key for key in snapshot.items if key >= from_key)
                chunk: list[StateItem] = []
                size = 0
                while len(chunk) < len(keys) and (not chunk or size < bytes_max):
                    chunk.append(snapshot.items[keys[len(chunk)]])
                    size += len(chunk[-1].value)
                return tuple(chunk), len(chunk) == len(keys)
            case ReadSnapshotValues(keys_wanted):
                found = [snapshot.items.get(key) for key in keys_wanted]
                return tuple(item.value if item else None for item in found)
            case SnapshotWrite():
                snapshot.write(step)
            case SnapshotFlush():
                snapshot.flush()
            case SnapshotClear():
                directory.snapshot = VirtualSnapshot()
            case _:
                assert_never(step)
        return None

    def _sorted(self) -> list[VirtualDirectory]:
        return [directory for _, directory in sorted(self.directories.items())]
