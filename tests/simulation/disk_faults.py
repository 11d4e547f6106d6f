"""Disks that fail, fill up, or recover from it: the hook of a virtual disk that raises before a step."""

from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId, SetName
from services.store.core.disk import (
    AnyStep,
    CreateSegment,
    DiskError,
    DiskProblem,
    SnapshotFlush,
    SnapshotWrite,
    SyncSegment,
    WriteMeta,
    WriteSegment,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

_WRITES = (CreateSegment, SnapshotFlush, SnapshotWrite, SyncSegment, WriteMeta, WriteSegment)
_ROOMY = (CreateSegment, WriteMeta, SnapshotWrite)


class DiskFaults:
    """Lives as long as its world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._taken: dict[BrokerId, int] = {}
        """Bytes that others took of a disk."""

    def start_failing(self, broker: BrokerId) -> None:
        """Half of the writes and syncs fail with an I/O error."""
        random = self._world.random

        def fail(set_name: SetName, step: AnyStep) -> None:
            if isinstance(step, _WRITES) and random.random() < 0.5:
                raise DiskError(DiskProblem.FAILED, "input/output error", step)

        self._world.disks[broker].fault = fail

    def fill_up(self, broker: BrokerId) -> None:
        """No room for anything new; what is preallocated can still be written."""

        def refuse(set_name: SetName, step: AnyStep) -> None:
            if isinstance(step, _ROOMY):
                raise DiskError(DiskProblem.FULL, "no space left on device", step)

        self._world.disks[broker].fault = refuse

    def run_low(self, broker: BrokerId) -> None:
        """Others use the file system up: the reserve is touched, and nothing fails yet."""
        disk = self._world.disks[broker]
        if broker not in self._taken:
            self._taken[broker] = disk.free_bytes - 2 * self._world.store_limits.reserve_bytes
            disk.free_bytes -= self._taken[broker]

    def repair(self, broker: BrokerId) -> None:
        disk = self._world.disks[broker]
        disk.fault = None
        disk.free_bytes += self._taken.pop(broker, 0)
