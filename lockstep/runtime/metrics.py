"""Metrics of a process for Prometheus: names, where they come from, and the port that serves them.

Law: nothing is counted twice and nothing on the message path pays for being watched: figures are plain attributes of those who
have them anyway, read when somebody asks for `/metrics`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

READ_SECONDS = 2.0
"""A loop that is busier than that shows nothing; the scrape fails, which says it too."""

_log = logging.getLogger("lockstep.metrics")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. Names end in `_total` for counters, and in a unit where there is one."""

    name: str
    help: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


class Sampling(Collector):
    """Reads all sources at each scrape, on the event loop: what they look at changes there and nowhere else."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sources: Iterable[Callable[[], Iterable[Sample]]]
    ) -> None:
        self._loop = loop
        self._sources = tuple(sources)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_SECONDS):
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = _family(sample)
            family.add_sample(sample.name, sample.labels, sample.value)
        yield from families.values()

    async def _read(self) -> list[Sample]:
        return [sample for source in self._sources for sample in source()]


def serve_metrics(port: int, sources: Iterable[Callable[[], Iterable[Sample]]]) -> Callable[[], None]:
    """Serves `/metrics` on all addresses at `port`; returns what stops it. Raises OSError when the port is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Sampling(asyncio.get_running_loop(), sources))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    server, thread = start_http_server(port, registry=registry)
    _log.info("event=metrics_served port=%d", server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _family(sample: Sample) -> Metric:
    if sample.name.endswith("_total"):
        return CounterMetricFamily(sample.name.removesuffix("_total"), sample.help)
    return GaugeMetricFamily(sample.name, sample.help)
