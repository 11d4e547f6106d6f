"""Procedures: sequences of jobs, each written as one function, and the steps that they read with.

Law: a procedure yields steps, is sent their results, and `DiskError` is thrown into it. Yielding `()` waits until anything at all
has happened to the set.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

from lockstep.core.ids import DiskId
from services.store.core.disk import (
    Compute,
    DiskError,
    DiskProblem,
    ListSegments,
    MakeDiskId,
    ReadMeta,
    ReadSegment,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    ReadSnapshotValues,
    Results,
    SnapshotChunk,
    Steps,
)
from services.store.core.meta import BadMeta, SnapshotMeta, decode_snapshot_meta

T = TypeVar("T")
Procedure = Generator[Steps, Results, T]
"""Returns a T."""


def read_bytes(step: ReadMeta | ReadSegment | ReadSnapshotMeta) -> Procedure[bytes]:
    """Performs one reading step."""
    (data,) = yield (step,)
    assert isinstance(data, bytes)
    return data


def read_snapshot_meta() -> Procedure[SnapshotMeta | None]:
    """What the snapshot is the state of; None: there is none. Raises `DiskError`, CORRUPT if it cannot be told."""
    step = ReadSnapshotMeta()
    data = yield from read_bytes(step)
    try:
        return decode_snapshot_meta(data) if data else None
    except BadMeta as error:
        raise DiskError(DiskProblem.CORRUPT, f"the snapshot's meta: {error}", step) from error


def make_disk_id() -> Procedure[DiskId]:
    (disk,) = yield (MakeDiskId(),)
    assert isinstance(disk, str)
    return DiskId(disk)


def list_segments() -> Procedure[tuple[tuple[int, int], ...]]:
    (listed,) = yield (ListSegments(),)
    assert isinstance(listed, tuple)
    return listed


def read_items(from_key: bytes, bytes_max: int) -> Procedure[SnapshotChunk]:
    (chunk,) = yield (ReadSnapshotItems(from_key, bytes_max),)
    items, is_last = chunk
    return items, is_last


def read_values(keys: tuple[bytes, ...]) -> Procedure[tuple[bytes | None, ...]]:
    (values,) = yield (ReadSnapshotValues(keys),)
    assert isinstance(values, tuple)
    return values


def compute(function: Callable[[], T], rest: float = 0.0) -> Procedure[T]:
    """Performs `function` in the lane's thread, which then rests `rest` times as long as that took."""
    (result,) = yield (Compute(function, rest),)
    computed: T = result
    return computed
