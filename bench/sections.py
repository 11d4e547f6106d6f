"""Runs as sections of Markdown: those of docs/performance.md, and of the file that a run leaves beside its own JSON."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.failover import LONGEST_PAUSE, MESSAGES, WATCHED_SECONDS
from bench.musts import FAILOVER_GOALS, GOALS, GROWTHS, PEER, standings
from bench.own_cluster import NAME
from bench.results import Disturbance, Measurement, Run, Trial, medians
from bench.tables import conditions, failovers_table, figure, measurements_table, processes_table, table

LEGEND = """\
Bodies are of 1 KiB and durable unless a line says otherwise; every server, etcd and the load programs share one
machine, so a rate is what is left of its processors. What was measured several times is shown with the measurement of
the median rate. "ops/s" are transactions, or in W3 calls of so many messages as the line says, and of one message each
for a peer, whose protocol has no others. "Servers" and "client" are processor time in microseconds for each message;
"others" is what processes that have nothing to do with it used meanwhile, in cores, and "slowdown", where it was looked
for, how much longer a small piece of work took on the slower processor than at best in that run, whoever on the host
did that; a line is noisy when that was more than 0.35, or 1.25. `make bench-full` and `make bench-peers` measure a noisy
one again, as long as their patience lasts, and the least disturbed one counts. "Sync" is the median of one fdatasync of
4 KiB in the data directory meanwhile. "Full" marks a load program with no time left: then the servers could perhaps do more.
"""
_TITLES = {
    "W1": "W1: publishing in transactions",
    "W2": "W2: accepting and publishing in one transaction",
    "W3": "W3: plain durable publishing, and consuming with acceptance",
    "W4": "W4: distributed transactions",
    "W6": "W6: latency under half of the highest throughput",
    "W7": "W7: scale, one dimension at a time",
}
_FAILOVERS = f"""\
In a trial one client commits one transaction of {MESSAGES} messages after the other, on servers that were at rest before; what is
shown are the seconds from the harm to the first commit of a transaction begun after it. The supervisor notices SIGKILL
and revokes the lease, hence less than the lease; SIGSTOP is noticed by nobody until the lease ends. etcd's leader is one
of three members and stays away for {WATCHED_SECONDS:g} s; the {LONGEST_PAUSE} is the longest time without a commit meanwhile.
"""
_NOT_MEASURED = ("not measured", "-", "-")


def run_sections(run: Run, plots: Sequence[Path], folder: Path) -> list[str]:
    """Of one run. `plots`: files of it and of others; `folder`: where the Markdown will be."""
    found = medians(run.measurements)
    if run.kind != "peers":
        return _own(run, found, _images(plots, run, folder))
    parts = ["## Beside other systems", conditions(run), _syncs(run), _ratios(run)]
    parts += [_images(plots, run, folder), measurements_table(found, with_system=True)]
    for system in dict.fromkeys(one.system for one in found):
        parts += [
            f"### Every process of {system}",
            processes_table([one for one in found if one.system == system]),
        ]
    return parts


def _own(run: Run, found: Sequence[Measurement], images: str) -> list[str]:
    parts = ["## Lockstep alone", conditions(run), _syncs(run)]
    if found:
        parts.append(images)
    for workload, title in _TITLES.items():
        if some := [one for one in found if one.workload == workload]:
            parts += [f"### {title}", measurements_table(some)]
    if run.failovers:
        parts += ["### W5: failover", _FAILOVERS, failovers_table(run.failovers)]
    if found:
        parts += ["### Every process", processes_table(found)]
    return parts


def goals_table(runs: Sequence[Run]) -> str:
    """What was reached of every goal, and by how much it is missed: by the last run that has it, of failovers by the one with
    the most trials."""
    rates = {one.key: (one, run) for run in runs for one in _sdk(run)}
    goals = [*_rate_goals(rates), *_failover_goals(runs), *_growths(rates)]
    rows = [[what, figure_wanted, *(measured or _NOT_MEASURED)] for what, figure_wanted, measured in goals]
    return table(("goal", "figure", "measured", "result", "fdatasync"), rows)


_Rates = Mapping[tuple[str, str], tuple[Measurement, Run]]
_Goals = Iterator[tuple[str, str, list[str] | None]]
"""(goal, figure, what was measured of it)."""


def _rate_goals(rates: _Rates) -> _Goals:
    for goal in GOALS:
        said = None
        if (measured := rates.get(goal.case.key)) is not None:
            value = goal.value(measured[0])
            said = [figure(value), goal.result(value), _conditions(*measured)]
        yield f"{goal.case.workload}: {goal.case.title}", f"{goal.figure:,.0f} {goal.unit}", said


def _failover_goals(runs: Sequence[Run]) -> _Goals:
    found: dict[str, tuple[Trial, Run]] = {}
    for run in runs:
        for one in run.failovers:
            before = len(found[one.what][0].seconds) if one.what in found else 1
            if len(one.seconds) >= before:
                found[one.what] = one, run
    for goal in FAILOVER_GOALS:
        said = None
        if (measured := found.get(goal.what)) is not None:
            trial = measured[0]
            said = [f"{goal.value(trial):.2f}", goal.result(trial), _conditions(*measured)]
        yield f"W5: {goal.what}", str(goal), said


def _growths(rates: _Rates) -> _Goals:
    for growth in GROWTHS:
        said = None
        first, last = rates.get(growth.first.key), rates.get(growth.last.key)
        if first is not None and last is not None:
            share = last[0].total_us / first[0].total_us - 1
            result = "reached" if share <= growth.share_max else "missed"
            said = [f"{share:+.0%}", result, _conditions(*last)]
        yield f"W7: a transaction's cost, {growth.what}", f"{growth.share_max:+.0%} at most", said


def _conditions(one: Disturbance, run: Run) -> str:
    return f"{1000 / run.disk.syncs_per_second:.2f} ms{', noisy' if one.is_noisy else ''}"


def _sdk(run: Run) -> list[Measurement]:
    return [one for one in medians(run.measurements) if one.system == NAME and one.path == "sdk"]


def _syncs(run: Run) -> str:
    return "\n".join(f"- **{name}**: {what}." for name, what in run.syncs.items())


def _ratios(run: Run) -> str:
    rows = [
        [
            f"{one.must.case.workload}: {one.must.case.title}",
            f"{one.ratio:.2f}",
            f"{one.must.ratio:g}",
            "reached" if one.is_reached else "missed",
            *(f"{side.slowdown:.2f}" if side is not None else "-" for side in (one.own, one.peer)),
        ]
        for one in standings(run.measurements)
    ]
    headings = (f"ratio to {PEER} (medians)", "ratio", "must", "result", "slowdown", f"of {PEER}'s")
    return table(headings, rows)


def _images(plots: Sequence[Path], run: Run, folder: Path) -> str:
    own = [path for path in plots if path.name.startswith(f"{run.kind}-")]
    return "\n".join(f"![{path.stem}]({os.path.relpath(path, folder)})" for path in own)
