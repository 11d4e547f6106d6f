"""Kinds of faults of etcd and of clocks."""

from tests.simulation.fault_tools import FaultTools
from tests.simulation.loop import MS, SECOND


class EtcdFaults(FaultTools):
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
