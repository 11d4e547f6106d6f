"""What the snapshot is the state of, after a step on it has failed as well.

Law: nobody goes on from a snapshot that may not be there any more. A step that fails may take what was not flushed, so the
consolidator forgets its state, and whoever wants to read asks what is left. Segments stay until what they hold is flushed, so
that is enough. Nothing is written while a chunk is read: the consolidator waits. A reading that goes on through a failure, or
through a write between two chunks, finds another snapshot than the one that it began with, and ends (`Scan`).
"""

from services.store.core.disk import DiskError, DiskProblem, ReadSnapshotMeta
from services.store.core.meta import SnapshotMeta
from services.store.core.procedure import Procedure, read_snapshot_meta
from services.store.core.stored_set import StoredSet


def known_snapshot(the: StoredSet) -> Procedure[SnapshotMeta | None]:
    """For whoever keeps the consolidator waiting, or is it. Raises `DiskError`, CORRUPT if flushed items are gone."""
    if not the.is_snapshot_known:
        found = yield from read_snapshot_meta()
        if (found.index if found else 0) < the.flushed_index:
            message = f"the snapshot lacks what was flushed at {the.flushed_index}"
            raise DiskError(DiskProblem.CORRUPT, message, ReadSnapshotMeta())
        the.snapshot, the.is_snapshot_known = found, True
    return the.snapshot
