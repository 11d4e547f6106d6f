"""What a proxy worker shows at /metrics."""

from collections.abc import Iterator

from lockstep.runtime.metrics import Sample
from services.proxy.worker import Worker


class ProxySamples:
    """Lives as long as its worker; read at each scrape."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def read(self) -> Iterator[Sample]:
        connections, traffic = self._worker.connections, self._worker.traffic
        yield Sample("lockstep_proxy_connections", len(connections))
        yield Sample("lockstep_proxy_logins_total", traffic.logins)
        yield Sample("lockstep_proxy_links", sum(one.links for one in connections))
        yield Sample("lockstep_proxy_open_transactions", sum(one.transactions for one in connections))
        for end, count in traffic.transactions.items():
            yield Sample("lockstep_proxy_transactions_total", count, {"end": end.value})
        for end, count in traffic.messages_in.items():
            yield Sample("lockstep_proxy_messages_in_total", count, {"end": end.value})
        yield Sample("lockstep_proxy_messages_out_total", traffic.messages_out)
