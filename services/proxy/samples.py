"""Figures of a proxy worker, for /metrics."""

from collections.abc import Iterator

from lockstep.runtime.metrics import Sample
from services.proxy.worker import Worker


class ProxySamples:
    """Lives as long as its worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def read(self) -> Iterator[Sample]:
        connections = self._worker.connections
        yield Sample("lockstep_proxy_connections", "AMQP connections", len(connections))
        yield Sample("lockstep_proxy_links", "Attached links", sum(one.links for one in connections))
        yield Sample(
            "lockstep_proxy_transactions", "Open transactions", sum(one.transactions for one in connections)
        )
