"""Metrics of a process for Prometheus: where they come from, and the port that serves them. Their names: `metric_names.py`.

Law: nothing is counted twice and nothing on the message path pays for being watched: figures are plain attributes of those who
have them anyway, read when somebody asks for `/metrics`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import assert_never

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep.core.histogram import Histogram
from lockstep.runtime.metric_names import NAMES, Kind, MetricName
from lockstep.runtime.process import CannotStart

READ_SECONDS = 2.0
"""A loop that is busier than that shows nothing; the scrape fails, which says it too."""

_log = logging.getLogger("lockstep.metrics")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric that is registered (`metric_names.py`), which says its kind, its meaning and its labels."""

    name: str
    value: float | Histogram
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
            name = NAMES[sample.name]
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = _family(name)
            assert tuple(sample.labels) == name.labels, f"{name.name} has the labels {name.labels}"
            _add(family, sample)
        yield from families.values()

    async def _read(self) -> list[Sample]:
        return [sample for source in self._sources for sample in source()]


def serve_metrics(
    port: int, sources: Iterable[Callable[[], Iterable[Sample]]], host: str = "0.0.0.0"
) -> Callable[[], None]:
    """Serves `/metrics` at `port` of `host` (all addresses); returns what stops it. Raises `CannotStart` when it is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Sampling(asyncio.get_running_loop(), sources))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise CannotStart(f"port {port} for metrics cannot be had: {error}") from error
    _log.info("event=metrics_served port=%d", server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _family(name: MetricName) -> Metric:
    match name.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(name.name.removesuffix("_total"), name.help)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name.name, name.help)
        case Kind.GAUGE:
            return GaugeMetricFamily(name.name, name.help)
        case _:
            assert_never(name.kind)


def _add(family: Metric, sample: Sample) -> None:
    value = sample.value
    if not isinstance(value, Histogram):
        assert not isinstance(family, HistogramMetricFamily), f"{sample.name} is a histogram"
        family.add_sample(sample.name, sample.labels, value)
        return
    assert isinstance(family, HistogramMetricFamily), f"{sample.name} is no histogram"
    for bound, count in zip((*map(str, value.bounds), "+Inf"), accumulate(value.counts), strict=True):
        family.add_sample(f"{sample.name}_bucket", {**sample.labels, "le": bound}, count)
    family.add_sample(f"{sample.name}_count", sample.labels, value.count)
    family.add_sample(f"{sample.name}_sum", sample.labels, value.sum)
