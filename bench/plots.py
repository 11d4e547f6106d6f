"""Plots of a run, as PNG: what a table of many lines does not show at a glance. Needs the extra `bench` (matplotlib)."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.cases import W7, Case
from bench.musts import PEER, standings
from bench.own_cluster import NAME
from bench.results import Measurement, Run, kind_of, medians

_PROCESSES = ("client", "proxy", "primary", "backup", "store", "etcd")


def draw(run: Run, folder: Path) -> list[Path]:
    """Every plot that the run has figures for; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = medians(run.measurements)
    plots = [
        ("throughput", _draw_throughput, [one for one in found if one.workload == "W1"]),
        (
            "cpu",
            _draw_cpu,
            [one for one in found if one.system == NAME and one.workload in ("W1", "W2", "W3")],
        ),
        ("latency", _draw_latency, [one for one in found if one.workload == "W6"]),
        ("scale", _draw_scale, [one for one in found if one.workload == "W7" and one.path == "sdk"]),
        ("ratios", _draw_ratios, [one for one in found if one.system in (NAME, PEER)]),
    ]
    drawn = []
    for name, draw_one, measured in plots:
        if name == "ratios" and not any(one.system == PEER for one in measured):
            continue
        if measured:
            path = folder / f"{run.name}-{name}.png"
            figure = draw_one(measured)
            figure.savefig(path, dpi=90, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
            drawn.append(path)
    return drawn


def _draw_throughput(found: Sequence[Measurement]) -> Figure:
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.22 * len(found)))
    labels = [f"{one.case} ({one.system}, {one.path})" for one in found]
    colours = {
        system: f"C{number}" for number, system in enumerate(dict.fromkeys(one.system for one in found))
    }
    rates = [one.messages_per_second for one in found]
    axes.barh(labels, rates, color=[colours[one.system] for one in found])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("messages/s in transactions")
    return figure


def _draw_cpu(found: Sequence[Measurement]) -> Figure:
    """Shares, for the costs themselves differ a hundredfold; the cost stands beside the bar."""
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.25 * len(found)))
    labels = [f"{one.workload}: {one.case}{', proxy' if one.path == 'amqp' else ''}" for one in found]
    totals = [max(one.total_us, 1e-9) for one in found]
    left = [0.0] * len(found)
    for kind in _PROCESSES:
        shares = [100 * _of_kind(one, kind) / total for one, total in zip(found, totals, strict=True)]
        axes.barh(labels, shares, left=left, label=kind)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    for place, total in enumerate(totals):
        axes.text(101, place, f"{total:,.0f} us", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_xlabel("processor time of a message: share of each kind of process, %")
    axes.legend(ncols=len(_PROCESSES), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _of_kind(one: Measurement, kind: str) -> float:
    used = {**one.processes, **one.clients}
    return sum(value.us_per_message for name, value in used.items() if kind_of(name) == kind)


def _draw_latency(found: Sequence[Measurement]) -> Figure:
    figure, axes = plt.subplots(figsize=(7, 4))
    for one in found:
        axes.plot(["p50", "p99", "p99.9"], [one.p50_ms, one.p99_ms, one.p999_ms], marker="o", label=one.case)
    axes.set_ylabel("ms, from when a transaction was due")
    axes.set_yscale("log")
    axes.legend(fontsize="small")
    return figure


def _draw_scale(found: Sequence[Measurement]) -> Figure:
    by_case = {one.case: one for one in found}
    figure, places = plt.subplots(2, math.ceil(len(W7) / 2), figsize=(16, 7))
    for place in places.flat[len(W7) :]:
        place.remove()
    for place, (dimension, cases) in zip(places.flat, W7.items(), strict=False):
        _draw_dimension(place, dimension, cases, by_case)
    figure.tight_layout()
    return figure


def _draw_dimension(
    axes: Axes, dimension: str, cases: Sequence[Case], by_case: dict[str, Measurement]
) -> None:
    measured = [by_case[case.title] for case in cases if case.title in by_case]
    labels = [f"{getattr(case, case.varied):,}" for case in cases if case.title in by_case]
    costs = [one.total_us * _messages_of_transaction(one) for one in measured]
    axes.plot(labels, costs, marker="o")
    axes.set_ylim(bottom=0)
    axes.set_title(f"CPU us a transaction by {dimension}", fontsize="medium")


def _messages_of_transaction(one: Measurement) -> float:
    return one.messages_per_second / one.operations_per_second if one.operations_per_second else 0.0


def _draw_ratios(found: Sequence[Measurement]) -> Figure:
    figure, axes = plt.subplots(figsize=(9, 4))
    known = [one for one in standings(found) if one.found.peer]
    labels = [f"{one.must.case.workload}: {one.must.case.title}" for one in known]
    axes.barh(labels, [one.ratio for one in known], label=f"{NAME} / {PEER}")
    axes.scatter([one.must.ratio for one in known], labels, marker="|", s=300, color="black", label="must")
    axes.invert_yaxis()
    axes.legend()
    return figure
