"""How a disk compares with etcd: whether it remembers what etcd lacks (DESIGN R1, histories 13 and 26)."""

from functools import lru_cache
from typing import NamedTuple

from lockstep.core.cluster_map import SetMap
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import Stamp, Stamps
from lockstep.core.store_protocol import SetOpened


class EtcdComparison(NamedTuple):
    """What etcd has. Revisions and stamps compare within a lineage only."""

    lineage: Lineage
    map_revision: int
    """Of the set's entry."""
    etcd_revision: int
    """etcd's own; 0: not known."""
    stamps: Stamps

    def revision_ahead(self, opened: SetOpened) -> int:
        """The revision that the disk remembers and etcd did not have when it was asked; 0: there is none."""
        if opened.generation not in self.lineage:
            return 0
        if opened.map_revision > self.map_revision:
            return opened.map_revision
        return opened.etcd_revision if 0 < self.etcd_revision < opened.etcd_revision else 0

    def is_left_out(self, opened: SetOpened, set_map: SetMap) -> bool:
        """Whether the entry was rebuilt beside what this disk remembers, and without it: its log may be of another history."""
        is_other = bool(opened.generation) and opened.generation not in self.lineage
        return is_other and set_map.is_forked and not set_map.names_disk(opened.disk)

    def rival(self, opened: SetOpened, set_map: SetMap | None) -> SetMap | None:
        """The entry that the disk remembers, if that has another primary of the entry's epoch: it has begun twice."""
        if opened.generation not in self.lineage or set_map is None:
            return None
        remembered = _remembered(opened.map_bytes)
        return remembered if remembered is not None and remembered.is_rival_of(set_map) else None

    def stamp_lost(self, opened: SetOpened) -> Stamp | None:
        """The stamp that the disk remembers and etcd lacks, whatever was written there since."""
        stamp = Stamp.decode(opened.stamp) if opened.generation in self.lineage else None
        return stamp if self.stamps.lacks(stamp) else None


@lru_cache(maxsize=64)
def _remembered(map_bytes: bytes) -> SetMap | None:
    """Asked of the same ones again and again."""
    try:
        return SetMap.decode(map_bytes)
    except ValueError:
        return None
