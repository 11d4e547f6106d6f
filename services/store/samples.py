"""What a store shows at /metrics.

Law: nothing is computed for it on the way of an append but two additions a group; the rest is read from the core when it is
asked for.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.core.histogram import Histogram
from lockstep.core.ids import SetName
from lockstep.runtime.metrics import Sample
from services.store.core.disk import Lane, WriteSegment
from services.store.core.messages import Perform

if TYPE_CHECKING:
    from services.store.server import StoreServer

FSYNC_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""From a disk with a write cache that keeps its word to one that hangs."""


class StoreSamples:
    """Lives as long as the server; used from its event loop."""

    def __init__(self, server: "StoreServer") -> None:
        self._server = server
        self._bytes = 0
        self._syncs: dict[SetName, Histogram] = {}

    def count_job(self, job: Perform) -> None:
        """A job was given to its thread."""
        if job.lane is Lane.JOURNAL:
            for step in job.steps:
                if isinstance(step, WriteSegment):
                    self._bytes += sum(map(len, step.parts))

    def synced(self, set_name: SetName, seconds: float) -> None:
        """A segment of the set's journal was synced."""
        self._of(set_name).observe(seconds)

    def read(self) -> Iterator[Sample]:
        yield Sample("lockstep_store_written_bytes_total", self._bytes)
        for status in self._server.core.status():
            labels: dict[str, str] = {"set": status.set_name}
            yield Sample("lockstep_journal_fsync_seconds", self._of(status.set_name), labels)
            yield Sample("lockstep_store_log_end", status.log_end, labels)
            yield Sample("lockstep_store_unconsolidated", status.log_end - status.snapshot_index, labels)
            yield Sample("lockstep_store_journal_bytes", status.journal_bytes, labels)
            yield Sample("lockstep_store_owed_bytes", status.owed_bytes, labels)
            yield Sample("lockstep_store_lowest_index", status.lowest_index, labels)
            yield Sample("lockstep_store_damaged", float(bool(status.damage)), labels)
            stalled = self._server.lanes.stalled_seconds(status.set_name)
            yield Sample("lockstep_store_stalled_seconds", stalled, labels)
            yield Sample("lockstep_fenced_requests_total", status.fenced, labels)

    def _of(self, set_name: SetName) -> Histogram:
        found = self._syncs.get(set_name)
        if found is None:
            found = self._syncs[set_name] = Histogram(FSYNC_SECONDS)
        return found
