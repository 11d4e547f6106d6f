"""Kinds of faults of disks: failing, full, slow, lost."""

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId
from services.primary.core.membership import SwapState
from tests.simulation.fault_tools import FaultTools
from tests.simulation.loop import MS, SECOND


class StorageFaults(FaultTools):
    """Each method is one kind, named as in `options.FAULT_KINDS`; False: it could not be done."""

    def _disk_failure(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.start_failing(broker)
        world.loop.after(self._later(50 * MS, 3 * SECOND), world.disk_faults.repair, broker)

    def _disk_full(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.fill_up(broker)
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_faults.repair, broker)

    def _disk_reserve_low(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.run_low(broker)
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_faults.repair, broker)

    def _disk_slow(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_slowness[broker] = world.random.choice((10, 100, 1000))
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_slowness.pop, broker, None)

    def _disk_lost(self) -> bool:
        """A machine comes back with an empty disk. Once in a run, and only where all sets have other disks in sync."""
        world, broker = self._world, self._some_broker()
        if self._disks_lost or not self.can_lose_disk(broker):
            return False
        self._disks_lost += 1
        world.power_loss(broker)
        world.lose_disk(broker)
        world.loop.after(self._down_us(), world.start_machine, broker)
        return True

    def _restart_with_a_lost_disk(self) -> bool:
        """Everybody loses power, and one machine comes back with an empty disk, perhaps as the first (history 24)."""
        world, broker = self._world, self._some_broker()
        if self._disks_lost or not self.can_lose_disk(broker):
            return False
        self._disks_lost += 1
        for other in world.broker_ids:
            world.power_loss(other)
            world.loop.after(self._later(0, 4 * SECOND), world.start_machine, other)
        world.lose_disk(broker)
        return True

    def _restart_with_one_disk_left(self) -> bool:
        """Everybody loses power, and all machines but one come back with empty disks: what the one has comes back (R4, R9)."""
        world, left = self._world, self._world.random.choice(self._world.broker_ids)
        if self._disks_lost or not self.is_settled():
            return False
        self._disks_lost += len(world.broker_ids) - 1
        for other in world.broker_ids:
            world.power_loss(other)
            world.loop.after(self._later(0, 4 * SECOND), world.start_machine, other)
            if other != left:
                world.lose_disk(other)
        world.branches.reach(
            "one disk left of a set that may lose nobody" if world.options.is_minimum_all else "one disk left"
        )
        return True

    def is_settled(self) -> bool:
        """Whether every set has everybody in sync, and no swap is under way that could leave one disk out of it."""
        world = self._world
        for set_map in world.set_maps():
            process = world.brokers.get(set_map.primary)
            primary = process.replicas[set_map.set_name].primary if process and process.is_alive else None
            if not _is_calm(set_map) or primary is None or primary.epoch != set_map.epoch:
                return False
            if not primary.is_serving or primary.membership.swap_state is not SwapState.NONE:
                return False
        return True

    def can_lose_disk(self, broker: BrokerId) -> bool:
        """Whether every set would still have a disk in sync, whatever swap of etcd's is under way."""
        for set_map in self._world.set_maps():
            others = [member for member in set_map.in_sync if member.broker != broker]
            if not others or not _is_calm(set_map):
                return False
        return True


def _is_calm(set_map: SetMap) -> bool:
    """With one member besides the lost one left, a removal under way could leave nobody: ask for the whole set."""
    return len(set_map.in_sync) == len(set_map.brokers)
