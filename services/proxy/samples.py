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
        yield Sample("lockstep_proxy_connections", "AMQP connections.", len(connections))
        yield Sample("lockstep_proxy_logins_total", "Connections that got past SASL.", traffic.logins)
        yield Sample("lockstep_proxy_links", "Attached links.", sum(one.links for one in connections))
        yield Sample(
            "lockstep_proxy_open_transactions",
            "Declared and not discharged.",
            sum(one.transactions for one in connections),
        )
        for end, count in traffic.transactions.items():
            yield Sample(
                "lockstep_proxy_transactions_total",
                "Transactions that ended; done: committed, or prepared; refused: rolled back.",
                count,
                {"end": end.value},
            )
        for end, count in traffic.messages_in.items():
            yield Sample(
                "lockstep_proxy_messages_in_total",
                "Messages of clients; done: the brokers have them, refused: they have not.",
                count,
                {"end": end.value},
            )
        yield Sample("lockstep_proxy_messages_out_total", "Messages to clients.", traffic.messages_out)
