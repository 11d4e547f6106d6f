"""What a store tells Prometheus.

Law: nothing is computed for it on the way of an append but two additions; the rest is read from the core when it is asked for.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.store.core.disk import Lane, SyncSegment, WriteSegment
from services.store.core.messages import Perform

if TYPE_CHECKING:
    from services.store.server import StoreServer


class StoreMetrics(Collector):
    """Lives as long as the server."""

    def __init__(self, server: "StoreServer") -> None:
        self._server = server
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._syncs = 0
        self._bytes = 0

    def count_job(self, job: Perform) -> None:
        """A job was given to its thread."""
        if job.lane is Lane.JOURNAL:
            for step in job.steps:
                if isinstance(step, WriteSegment):
                    self._bytes += sum(map(len, step.parts))
                elif isinstance(step, SyncSegment):
                    self._syncs += 1

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily("lockstep_store_syncs", "Groups made durable.", value=self._syncs)
        yield CounterMetricFamily("lockstep_store_written_bytes", "Bytes of groups.", value=self._bytes)
        log_end = GaugeMetricFamily("lockstep_store_log_end", "Highest durable index.", labels=["set"])
        behind = GaugeMetricFamily(
            "lockstep_store_unconsolidated", "Log end less snapshot index.", labels=["set"]
        )
        journal = GaugeMetricFamily(
            "lockstep_store_journal_bytes", "Bytes of the journal's segment files.", labels=["set"]
        )
        owed = GaugeMetricFamily(
            "lockstep_store_owed_bytes", "Bytes of segment files kept for readers of events.", labels=["set"]
        )
        lowest = GaugeMetricFamily(
            "lockstep_store_lowest_index", "Lowest index that readers can have.", labels=["set"]
        )
        damaged = GaugeMetricFamily("lockstep_store_damaged", "1: the set is damaged.", labels=["set"])
        stalled = GaugeMetricFamily(
            "lockstep_store_stalled_seconds", "Age of the journal's job.", labels=["set"]
        )
        for status in self._server.core.status():
            labels = [str(status.set_name)]
            log_end.add_metric(labels, status.log_end)
            behind.add_metric(labels, status.log_end - status.snapshot_index)
            journal.add_metric(labels, status.journal_bytes)
            owed.add_metric(labels, status.owed_bytes)
            lowest.add_metric(labels, status.lowest_index)
            damaged.add_metric(labels, float(bool(status.damage)))
            stalled.add_metric(labels, self._server.lanes.stalled_seconds(status.set_name))
        yield from (log_end, behind, journal, owed, lowest, damaged, stalled)
