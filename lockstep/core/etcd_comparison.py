"""How a disk compares with etcd: whether it remembers what etcd lacks (DESIGN R1, histories 13 and 26)."""

from functools import lru_cache
from typing import NamedTuple

from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import DiskId, SetName
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import Stamp, Stamps
from lockstep.core.store_protocol import SetOpened


class Lacking(NamedTuple):
    """What a disk remembers and etcd lacks, however far that has come since."""

    revision: int = 0
    """Which etcd did not have when it was asked; 0: none."""
    stamp: Stamp | None = None
    rival: SetMap | None = None
    """An entry that has another primary of the epoch of etcd's: it has begun twice."""

    @property
    def is_anything(self) -> bool:
        return self != _NOTHING


_NOTHING = Lacking()


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

    def lacking(self, opened: SetOpened, set_map: SetMap | None) -> Lacking:
        """What the disk remembers of that. `set_map`: the set's entry; None: there is none."""
        if opened.generation not in self.lineage:
            return _NOTHING
        stamp = Stamp.decode(opened.stamp)
        rival = _remembered(opened.map_bytes) if set_map is not None else None
        if rival is not None and set_map is not None and not rival.is_rival_of(set_map):
            rival = None
        return Lacking(self.revision_ahead(opened), stamp if self.stamps.lacks(stamp) else None, rival)

    def is_left_out(self, opened: SetOpened, set_map: SetMap | None) -> bool:
        """Whether the entry was rebuilt beside what this disk remembers, and without it: its log may be of another history."""
        is_other = bool(opened.generation) and opened.generation not in self.lineage
        return is_other and set_map is not None and set_map.is_forked and not set_map.names_disk(opened.disk)


@lru_cache(maxsize=64)
def _remembered(map_bytes: bytes) -> SetMap | None:
    """Asked of the same ones again and again."""
    try:
        return SetMap.decode(map_bytes)
    except ValueError:
        return None


def mark_set_back(set_name: SetName, disk: DiskId, lacking: Lacking, generation: str) -> MarkSetBack:
    """What has etcd say that it was set back, in the generation in which this disk has found it so."""
    return MarkSetBack(set_name, lacking.revision, disk, lacking.stamp, generation, lacking.rival)
