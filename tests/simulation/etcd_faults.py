"""Kinds of faults of etcd, and of clocks."""

from lockstep.core.ids import BrokerId
from tests.simulation.coordinator_faults import CoordinatorFaults
from tests.simulation.loop import MS, SECOND
from tests.simulation.operators import Operators
from tests.simulation.options import ETCD_SET_BACK

RESTORED_US = 3_500 * MS
"""At least: longer than a call of etcd's may be on its way (`EtcdOptions.slow_us`)."""


class EtcdFaults(CoordinatorFaults):
    """Each method is one kind, named as in `options.FAULT_KINDS`; False: it could not be done."""

    def _etcd_restart(self) -> bool:
        etcd = self._world.etcd
        if not etcd.is_up:
            return False
        etcd.stop()
        self._world.loop.after(self._later(100 * MS, 6 * SECOND), self._start_etcd)
        return True

    def _start_etcd(self) -> None:
        if not self._world.etcd.is_up:
            self._world.etcd.start()

    def _etcd_set_back(self) -> bool:
        """etcd stops, perhaps everybody with it, and comes back from a backup. Once in a run; no disk is lost from then on: the
        only one that knows may be.
        """
        world = self._world
        if self._is_set_back or not world.etcd.is_up or world.backups.some() is None:
            return False
        self._is_set_back = True
        self._disks_lost += 1
        world.etcd.stop()
        if world.random.random() < 0.6:
            die = world.random.choice((world.power_loss, self._crash))
            for broker in world.broker_ids:
                world.loop.after(self._later(0, 20 * MS), self._if_active, die, broker)
                world.loop.after(self._later(3 * SECOND, 12 * SECOND), world.start_machine, broker)
        if world.random.random() < 0.5:
            self._kill_all_coordinators()
        world.loop.after(self._later(RESTORED_US, 2 * RESTORED_US), self._if_active, self._restore_etcd)
        return False

    def _crash(self, broker: BrokerId) -> None:
        self._world.crash_broker(broker, "killed")

    def _restore_etcd(self) -> None:
        """What was on its way to etcd is lost by now. Where nobody could tell any more, it goes on as it was."""
        world = self._world
        backup = world.backups.some() if not world.etcd.is_up else None
        if backup is None:
            self._is_set_back = False
            self._disks_lost -= 1
            self._start_etcd()
            return
        world.trace(None, f"etcd set back from revision {world.etcd.revision} to {backup.revision}")
        world.branches.reach("etcd set back")
        world.etcd.restore(backup)
        self.counts[ETCD_SET_BACK] += 1
        world.visitors.append(Operators(world))

    def _etcd_answers_lost(self) -> None:
        options = self._world.etcd.options
        options.answer_lost, options.answer_slow, options.executed_late = 0.2, 0.2, 0.3
        self._world.loop.after(self._later(1 * SECOND, 6 * SECOND), self._etcd_answers_again)

    def _etcd_answers_again(self) -> None:
        options = self._world.etcd.options
        options.answer_lost = options.answer_slow = options.executed_late = 0.0

    def _wall_clock_jump(self) -> None:
        host = self._world.host_of(self._some_broker())
        self._world.clocks[host].wall_offset_ms += self._world.random.choice(
            (-3_600_000, -5_000, -100, 100, 5_000)
        )
