"""What a broker process of the simulation knows of etcd's own revision and stamps, and what it does about them: as `EtcdMemory`
and `Witnessing` do for real ones (R1).
"""

from typing import TYPE_CHECKING

from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import BrokerId, DiskId, SetName
from lockstep.core.stamps import NO_STAMPS, Stamp, Stamps
from lockstep.runtime.etcd_memory import REMEMBERED_EVERY_MS
from lockstep.runtime.etcd_values import Operation, Put, TransactionResult, as_read
from services.broker.core.witness import EtcdSeen, StampsWritten
from tests.simulation.etcd import Etcd
from tests.simulation.etcd_session import IN_DOUBT
from tests.simulation.etcd_transactions import transact
from tests.simulation.loop import MS

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.broker_etcd import BrokerEtcd


class EtcdMemory:
    """Lives as long as its broker process."""

    def __init__(self, broker: "Broker", etcd: "BrokerEtcd") -> None:
        self._broker = broker
        self._etcd = etcd
        self._keys = broker.world.keys
        self._keeper = broker.world.parts.make_witness(broker.broker, broker.incarnation)
        self.highest = 0
        self.stamp: Stamp | None = None
        """The newest that was seen in this generation, also where etcd lacks it now."""
        self._stamp_in = ""
        self._told = 0
        self._told_stamp: Stamp | None = None
        self._next_us = 0
        self._last: SetName | None = None
        self._is_writing = False

    @property
    def stamps(self) -> Stamps:
        """As the watch has shown them."""
        entry = self._etcd.session.view.get(self._keys.stamps)
        return Stamps.decode(entry.value) if entry is not None else NO_STAMPS

    def viewed(self) -> SetName | None:
        """Something was read or watched; returns the set whose disk is to remember it now, if there is one."""
        self.highest = max(self.highest, self._etcd.session.revision)
        stamps, is_old = self.stamps, self._stamp_in in self._etcd.lineage
        self._stamp_in = self._etcd.generation
        if is_old and stamps.lacks(self.stamp):
            self._have_it_told()
            return None
        self.stamp = stamps.newest or (self.stamp if is_old else None)
        if self.stamp != self._told_stamp:
            self._keeper.stamped(self._now_ms())
        self._write(stamps)
        return self._due()

    def saw(self, revision: int) -> SetName | None:
        """An answer had this one; as `viewed`."""
        self.highest = max(revision, self.highest)
        return self.viewed()

    def _due(self) -> SetName | None:
        now_us = self._broker.world.loop.now_us
        is_revision_due = self.highest != self._told and now_us >= self._next_us
        if self.stamp == self._told_stamp and not is_revision_due:
            return None
        names = sorted(self._broker.replicas)
        self._last = next((name for name in names if self._last is None or name > self._last), names[0])
        self._told, self._told_stamp = self.highest, self.stamp
        self._next_us = now_us + REMEMBERED_EVERY_MS * MS
        return self._last

    def _have_it_told(self) -> None:
        if self._keys.set_back not in self._etcd.session.view:
            self._broker.world.branches.reach("etcd set back before a broker's eyes")
            name = min(self._broker.replicas)
            mark = MarkSetBack(name, 0, DiskId(""), self.stamp, self._etcd.generation)
            self._etcd.session.tell(lambda etcd: self.mark(etcd, mark))

    # --- stamps -------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._broker.world.loop.now_us // MS

    def _write(self, stamps: Stamps) -> None:
        session, lease = self._etcd.session, self._etcd.keeper.lease_id
        if self._is_writing or self._keys.set_back in session.view:
            return
        entry = session.view.get(self._keys.stamps)
        revision, value = (entry.mod_revision, entry.value) if entry is not None else (0, b"")
        present = {
            BrokerId(key.removeprefix(self._keys.witnesses)): entry.value.decode()
            for key, entry in session.view.items()
            if key.startswith(self._keys.witnesses)
        }
        seen = EtcdSeen(stamps, revision, self.highest, present)
        wanted = self._keeper.look(seen, lease, self._now_ms())
        if wanted is not None and all(one.has_compared for one in self._broker.replicas.values()):
            self._is_writing = True
            self._put(wanted, revision, value, lease)

    def _put(self, wanted: StampsWritten, revision: int, value: bytes, lease: int) -> None:
        operations: list[Operation] = [Put(self._keys.stamps, wanted.stamps.encode())]
        if wanted.token:
            operations.append(Put(self._keys.witness(self._broker.broker), wanted.token.encode(), lease))

        def take(result: object) -> None:
            self._is_writing = False
            if result is IN_DOUBT:
                self._keeper.in_doubt()
            if isinstance(result, TransactionResult) and result.succeeded and wanted.token:
                self._broker.world.branches.reach("broker is a witness")
            entry = self._etcd.session.view.get(self._keys.stamps)
            if entry is not None and entry.mod_revision > revision:
                self._write(self.stamps)

        compares = self._broker.world.parts.compared(as_read(self._keys.stamps, value, revision))
        self._etcd.session.call(
            lambda etcd: transact(etcd, compares, operations), lambda result: self._broker.post(take, result)
        )

    def mark(self, etcd: Etcd, effect: MarkSetBack) -> None:
        """In one operation at etcd."""
        keys = self._keys
        generation, stamps = etcd.get(keys.generation), etcd.get(keys.stamps)
        if etcd.get(keys.set_back) is not None or generation is None:
            return
        if effect.generation and generation.value.decode() != effect.generation:
            return
        is_stamp_lost = Stamps.decode(stamps.value if stamps is not None else b"").lacks(effect.stamp)
        entry, rival = etcd.get(keys.set_map(effect.set_name)), effect.rival
        is_rival = rival is not None and entry is not None and rival.is_rival_of(SetMap.decode(entry.value))
        if etcd.revision < effect.revision or is_stamp_lost or is_rival:
            self._broker.world.branches.reach("etcd found set back")
            etcd.put(keys.set_back, effect.disk.encode() or b"-")
