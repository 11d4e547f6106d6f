"""Backups of etcd, taken now and then, one of which is restored behind everybody's back (histories 13 and 26).

Law: one is restored only where it can be told, as is promised (DESIGN R1): a witness of that time remembers, on its disk, a stamp
that was put behind the backup; and where a set's entry has changed since, every disk that the old one names knows.
"""

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId
from lockstep.core.stamps import Stamp, Stamps
from services.store.core.meta import SetMeta, decode_set_meta
from tests.simulation.loop import SECOND

if TYPE_CHECKING:
    from tests.simulation.etcd import Backup
    from tests.simulation.world import World

EVERY_US = 2 * SECOND
OLD_US = 8 * SECOND
"""Whoever has called the roll before a backup calls it anew behind the restore: etcd is stopped for some seconds beside."""
KEPT = 10


class EtcdBackups:
    """Lives as long as its world; takes none before `start`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(f"backups {world.options.seed}")
        self._taken: deque[tuple[int, Backup]] = deque(maxlen=KEPT)
        """(when, what), the oldest first."""

    def start(self) -> None:
        self._world.loop.after(EVERY_US, self.start)
        if self._world.etcd.is_up:
            self._taken.append((self._world.loop.now_us, self._world.etcd.backup()))

    def some(self) -> "Backup | None":
        """One that can be told from the etcd that there is; None: there is none."""
        now_us = self._world.loop.now_us
        found = [
            backup for at_us, backup in self._taken if at_us + OLD_US <= now_us and self._is_told(backup)
        ]
        return self._random.choice(found) if found else None

    def _is_told(self, backup: "Backup") -> bool:
        world, keys = self._world, self._world.keys
        before, now = backup.entries.get(keys.stamps), world.etcd.get(keys.generation)
        if before is None or now is None or backup.entries[keys.generation].value != now.value:
            return False
        stamps, generation = Stamps.decode(before.value), now.value.decode()
        metas = {broker: self._metas(broker) for broker in world.broker_ids}
        if not any(
            meta.generation == generation and stamps.lacks(Stamp.decode(meta.stamp))
            for witness in stamps.witnesses
            for meta in metas[witness.broker].values()
        ):
            return False
        for set_name in world.set_names:
            entry, entry_now = backup.entries[keys.set_map(set_name)], world.etcd.get(keys.set_map(set_name))
            if entry_now is not None and entry.value == entry_now.value:
                continue
            set_map = SetMap.decode(entry.value)
            for of_sets in metas.values():
                meta = of_sets.get(set_name)
                if meta is None or not set_map.names_disk(meta.disk):
                    continue
                is_later = meta.map_revision > entry.mod_revision or meta.highest_epoch > set_map.epoch
                if not (is_later or stamps.lacks(Stamp.decode(meta.stamp))):
                    return False
        return True

    def _metas(self, broker: BrokerId) -> "dict[str, SetMeta]":
        """What the broker's disk remembers, by set."""
        directories = self._world.disks[broker].directories.items()
        return {set_name: decode_set_meta(one.meta) for set_name, one in directories if one.meta}
