"""How a disk compares with etcd: whether it remembers what etcd lacks (DESIGN R1, histories 13 and 26)."""

from typing import NamedTuple

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

    def stamp_lost(self, opened: SetOpened) -> Stamp | None:
        """The stamp that the disk remembers and etcd lacks, whatever was written there since."""
        stamp = Stamp.decode(opened.stamp) if opened.generation in self.lineage else None
        return stamp if self.stamps.lacks(stamp) else None
