"""What a broker process of the simulation knows of etcd's own revision, and what it does about it, as `EtcdMemory` does (R1)."""

from typing import TYPE_CHECKING

from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import SetName
from services.broker.etcd_memory import REMEMBERED_EVERY_MS
from tests.simulation.etcd import Etcd
from tests.simulation.loop import MS

if TYPE_CHECKING:
    from tests.simulation.broker import Broker


class EtcdRevisions:
    """Lives as long as its broker process."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.highest = 0
        self._told = 0
        self._next_us = 0
        self._last: SetName | None = None

    def saw(self, revision: int) -> SetName | None:
        """An answer had this one; returns the set whose disk is to remember it now, if there is one."""
        self.highest = max(revision, self.highest)
        now_us = self._broker.world.loop.now_us
        if self.highest == self._told or now_us < self._next_us:
            return None
        names = sorted(self._broker.replicas)
        self._last = next((name for name in names if self._last is None or name > self._last), names[0])
        self._told, self._next_us = self.highest, now_us + REMEMBERED_EVERY_MS * MS
        return self._last

    def mark(self, etcd: Etcd, effect: MarkSetBack) -> None:
        """In one operation at etcd."""
        key = self._broker.world.keys.set_back
        if etcd.revision < effect.revision and etcd.get(key) is None:
            self._broker.world.branches.reach("etcd found set back")
            etcd.put(key, effect.disk.encode())
