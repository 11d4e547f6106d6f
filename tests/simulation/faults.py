"""Faults: what goes wrong in a world, each kind one method, drawn from the seed's options.

Law: at any moment enough is left for every promise to hold: a disk is lost only where the cluster map has others in sync for
every set. Everything that was broken is whole again after `heal`.
"""

from tests.simulation.etcd_faults import EtcdFaults
from tests.simulation.loop import MS
from tests.simulation.options import ETCD_SET_BACK
from tests.simulation.process_faults import ProcessFaults
from tests.simulation.storage_faults import StorageFaults


class Faults(ProcessFaults, EtcdFaults, StorageFaults):
    """Lives as long as its world; `start` begins and `heal` ends the safety phase's faults."""

    def start(self) -> None:
        self._is_active = bool(self._world.options.faults)
        if ETCD_SET_BACK in self._world.options.faults:
            self._world.backups.start()
        self._next()
        self._world.core_faults.start()

    def heal(self) -> None:
        """Stop all faults and repair everything."""
        world = self._world
        self._is_active = False
        world.core_faults.heal()
        world.trace(None, "healed")
        world.network.heal()
        if not world.etcd.is_up:
            world.etcd.start()
        self._etcd_answers_again()
        world.disk_slowness.clear()
        for broker in world.broker_ids:
            world.disk_faults.repair(broker)
            world.start_machine(broker)
        for running in world.brokers.values():
            running.fuse = running.pause_fuse = None
        world.coordinators.start_all()
        for coordinator in world.coordinators.alive():
            coordinator.fuse = coordinator.step_fuse = None
        for process in world.processes():
            process.resume()

    def _next(self) -> None:
        world = self._world
        gap_us = int(world.random.expovariate(1.0 / world.options.fault_gap_us))
        world.loop.after(max(gap_us, 50 * MS), self._strike)

    def _strike(self) -> None:
        if self._is_active:
            self.strike(self._world.random.choice(self._world.options.faults))
            self._next()

    def strike(self, kind: str) -> None:
        """Do one fault of `kind` now."""
        self._world.trace(None, f"fault: {kind}")
        method = getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))
        if method() is not False:
            self.counts[kind] += 1
