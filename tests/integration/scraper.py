"""What Prometheus would have seen of a test's cluster: every `/metrics` again and again, and plots of it."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

SCRAPE_SECONDS = 0.25
"""Often enough to see a swap of the in-sync set; Prometheus itself looks every few seconds."""


GAP_SECONDS = 1.0


@dataclass(frozen=True)
class Seen:
    """One value of one scrape."""

    seconds: float
    """Since the scraper began."""
    process: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0


class Scraper:
    """Lives as long as `run`; what it saw stays."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """`ports` of `/metrics`, by the names of their processes."""
        self._ports = ports
        self._begun = time.monotonic()
        self.seen: list[Seen] = []

    async def run(self) -> None:
        """Scrapes for ever; a process that does not answer is left out."""
        while True:
            await asyncio.gather(*(self._scrape(process, port) for process, port in self._ports.items()))
            await asyncio.sleep(SCRAPE_SECONDS)

    async def _scrape(self, process: str, port: int) -> None:
        try:
            text = await asyncio.to_thread(_read, port)
        except OSError:
            return
        at = self.now()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("lockstep_"):
                    self.seen.append(Seen(at, process, sample.name, sample.labels, sample.value))

    def now(self) -> float:
        """Seconds since the scraper began."""
        return time.monotonic() - self._begun

    def of(self, name: str, **labels: str) -> Iterator[Seen]:
        """What was seen of a sample's name with these labels, in time."""
        for seen in self.seen:
            if seen.name == name and labels.items() <= seen.labels.items():
                yield seen

    def grown(self, name: str, **labels: str) -> float:
        """By how much a counter grew, over all processes; one that starts again begins at 0."""
        last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        grown = 0.0
        for seen in self.of(name, **labels):
            key = seen.process, tuple(sorted(seen.labels.items()))
            before = last.get(key, 0.0)
            grown += seen.value - before if seen.value >= before else seen.value
            last[key] = seen.value
        return grown

    async def until(self, what: str, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Waits until what was seen says so; fails with `what`."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not seen within {seconds:g} s: {what}"
            await asyncio.sleep(SCRAPE_SECONDS)


def plot(seen: Scraper, charts: Mapping[str, Iterable[Seen]], marks: Mapping[str, float], path: Path) -> None:
    """One chart under the other over the same time, as PNG; `marks`: what was done, and when."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2 * len(charts)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, values) in zip(axes, charts.items(), strict=True):
        lines: dict[str, list[Seen]] = {}
        for one in values:
            lines.setdefault(one.process, []).append(one)
        for process, points in lines.items():
            axis.plot(*_with_gaps(points), drawstyle="steps-post", marker=".", markersize=3, label=process)
        for what, at in marks.items():
            axis.axvline(at, color="grey", linestyle=":")
            axis.annotate(
                what, (at, 0.97), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=7
            )
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, loc="center left")
    axes[-1].set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _with_gaps(points: Sequence[Seen]) -> tuple[list[float], list[float]]:
    """Nothing is drawn where the process did not answer, or did not tell it."""
    xs: list[float] = []
    ys: list[float] = []
    for one in points:
        if xs and one.seconds - xs[-1] > GAP_SECONDS:
            xs.append(one.seconds)
            ys.append(math.nan)
        xs.append(one.seconds)
        ys.append(one.value)
    return xs, ys


def _read(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        return str(response.read().decode())
