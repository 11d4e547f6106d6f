"""Runs as sections of Markdown: those of docs/performance.md, and of the file that a run leaves beside its own JSON."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cases import Case
from bench.comparing import Comparison, compared
from bench.failover import LONGEST_PAUSE, MESSAGES, WATCHED_SECONDS
from bench.musts import FAILOVER_GOALS, GOALS, GROWTHS, PEER, FailoverGoal, standings
from bench.own_cluster import NAME
from bench.results import (
    BESIDE_OTHERS,
    USUAL_CORES,
    Disturbance,
    Measurement,
    Run,
    Trial,
    by_round,
    medians,
)
from bench.scope import CASES as SCOPE_CASES
from bench.tables import (
    conditions,
    failovers_table,
    figure,
    measurements_table,
    missing_lines,
    processes_table,
    table,
)

LEGEND = """\
Bodies are of 1 KiB and durable unless a line says otherwise; every server, etcd and the load programs share one
machine, so a rate is what is left of its processors. What was measured several times is shown with the measurement of
the median rate. "ops/s" are transactions, or in W3 calls of so many messages as the line says, and of one message each
for a peer and for the proxy, whose protocols have no others. "Servers" and "client" are processor time in microseconds for
each message; "others" is what processes that have nothing to do with it used meanwhile, in cores, "systems" what the other
systems of the run did, and "slowdown", where it was looked for, how much longer a small piece of work took on the slower
processor than at best in that run, whoever on the host did that; a line is noisy when others and systems used more than
0.35, when the slowdown was more than 1.25, or when it began before all systems of the run were at rest. `make bench-full`
and the runs beside others measure a noisy one again, as long as their patience lasts, and the least disturbed one counts;
what does not count is kept, and shown as set aside. "Sync" is the median of one fdatasync of 4 KiB in the data directory
meanwhile. "Full" marks a load program with no time left: then the servers could perhaps do more. In the table of goals the
least disturbed measurement counts (others in shares of 0.35, slowdown of 1.25, whichever is more), of undisturbed ones the
longest, of as long ones the newest, and of failovers the series with the most trials, of as many the worse one. Costs that
must not grow are of one measurement each: what they differ by has its error in it.
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
RATIOS_TO = ("artemis",)
"""Brokers beside that of the musts."""
_NOT_MEASURED = ("not measured", "-", "-", "-")


def run_sections(run: Run, plots: Sequence[Path], folder: Path) -> list[str]:
    """Of one run. `plots`: files of it and of others; `folder`: where the Markdown will be."""
    found = medians(run.measurements)
    if run.kind not in BESIDE_OTHERS:
        return _own(run, found, _images(plots, run, folder))
    parts = [
        f"## {BESIDE_OTHERS[run.kind]}{'' if run.machine.cores == USUAL_CORES else f', on {run.machine.cores} cores'}",
        conditions(run),
        _syncs(run),
        missing_lines(run.missing),
        _ratios(run),
    ]
    parts += [_images(plots, run, folder), measurements_table(found, with_system=True)]
    parts += ["### Every measurement", _rates_by_round(run)]
    for system in dict.fromkeys(one.system for one in found):
        parts += [
            f"### Every process of {system}",
            processes_table([one for one in found if one.system == system]),
        ]
    return parts


def _own(run: Run, found: Sequence[Measurement], images: str) -> list[str]:
    parts = ["## Lockstep alone", conditions(run), _syncs(run), missing_lines(run.missing)]
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
    """What was reached of every goal, and by how much it is missed: by the least disturbed measurement, of undisturbed ones the
    longest, and of these the newest; of failovers by the series with the most trials, and of as many the worse one."""
    goals = [*_rate_goals(runs), *_failover_goals(runs), *_growths(runs)]
    rows = [[what, figure_wanted, *(measured or _NOT_MEASURED)] for what, figure_wanted, measured in goals]
    return table(("goal", "figure", "measured", "result", "fdatasync", "commit"), rows)


_Goals = Iterator[tuple[str, str, list[str] | None]]
"""(goal, figure, what was measured of it)."""


def _rate_goals(runs: Sequence[Run]) -> _Goals:
    for goal in GOALS:
        said = None
        if (counted := _least_disturbed(runs, goal.case)) is not None:
            (one,), run = counted
            value = goal.value(one)
            said = [figure(value), goal.result(value), *_conditions(run, one)]
        yield f"{goal.case.workload}: {goal.case.title}", f"{goal.figure:,.0f} {goal.unit}", said


def _failover_goals(runs: Sequence[Run]) -> _Goals:
    for goal in FAILOVER_GOALS:
        said = None
        if (counted := _worst(runs, goal)) is not None:
            trial, run = counted
            said = [f"{goal.value(trial):.2f}", goal.result(trial), *_conditions(run, trial)]
        yield f"W5: {goal.what}", str(goal), said


def _growths(runs: Sequence[Run]) -> _Goals:
    for growth in GROWTHS:
        said = None
        if (counted := _least_disturbed(runs, growth.first, growth.last)) is not None:
            (first, last), run = counted
            share = last.total_us / first.total_us - 1
            result = "reached" if share <= growth.share_max else "missed"
            said = [f"{share:+.0%}", result, *_conditions(run, first, last)]
        yield f"W7: a transaction's cost, {growth.what}", f"{growth.share_max:+.0%} at most", said


def _least_disturbed(runs: Sequence[Run], *cases: Case) -> tuple[list[Measurement], Run] | None:
    """The run that has all of these cases, and its measurements of them."""
    found = []
    for run in runs:
        known = {one.key: one for one in _sdk(run)}
        if all(case.key in known for case in cases):
            found.append(([known[case.key] for case in cases], run))

    def place(one: tuple[list[Measurement], Run]) -> tuple[float, float, float]:
        disturbance = max(1.0, *(measured.disturbance for measured in one[0]))
        # In tenths: what is timed ends some milliseconds late.
        return (
            disturbance,
            -round(min(measured.seconds for measured in one[0]), 1),
            -one[1].started.timestamp(),
        )

    return min(found, key=place, default=None)


def _worst(runs: Sequence[Run], goal: FailoverGoal) -> tuple[Trial, Run] | None:
    found = [(trial, run) for run in runs for trial in run.failovers if trial.what == goal.what]
    return max(found, key=lambda one: (len(one[0].seconds), goal.value(one[0])), default=None)


def _conditions(run: Run, *ones: Disturbance) -> tuple[str, str]:
    noisy = ", noisy" if any(one.is_noisy for one in ones) else ""
    return f"{1000 / run.disk.syncs_per_second:.2f} ms{noisy}", run.commit or "-"


def _sdk(run: Run) -> list[Measurement]:
    return [one for one in medians(run.measurements) if one.system == NAME and one.path == "sdk"]


def _syncs(run: Run) -> str:
    return "\n".join(f"- **{name}**: {what}." for name, what in run.syncs.items())


def _ratios(run: Run) -> str:
    """Of the musts, which are of bursts and not of minutes; and, of what was measured too, where there is no must."""
    judged = standings(run.measurements) if run.kind != "sustained" else []
    rows = [
        [
            f"{one.must.case.workload}: {one.must.case.title}",
            *_rounds(one.found),
            f"{one.must.ratio:g}",
            one.verdict,
        ]
        for one in judged
    ]
    tables = [table((f"ratio to {PEER} (medians)", *_ROUNDS, "must", "result"), rows)] if rows else []
    with_must = {one.must.case for one in judged}
    for peer in (PEER, *RATIOS_TO):
        others = [(case, compared(run.measurements, case, peer)) for case in SCOPE_CASES]
        rows = [
            [f"{case.workload}: {case.title}", *_rounds(found)]
            for case, found in others
            if found.ratio and not (peer == PEER and case in with_must)
        ]
        if rows:
            tables.append(table((f"ratio to {peer} (medians), without a must", *_ROUNDS), rows))
    through_proxy = [(case, compared(run.measurements, case, PEER, "amqp")) for case in SCOPE_CASES]
    rows = [
        [f"{case.workload}: {case.title}", *_rounds(found)] for case, found in through_proxy if found.ratio
    ]
    if rows:
        tables.append(table((f"AMQP proxy: ratio to {PEER} (medians)", *_ROUNDS), rows))
    return "\n\n".join(tables)


_ROUNDS = ("ratio", "interval", "by round", "slowdown", "of the other's")


def _rounds(found: Comparison) -> list[str]:
    slowdowns = (f"{side.slowdown:.2f}" if side is not None else "-" for side in (found.own, found.peer))
    return [
        f"{found.ratio:.2f}",
        str(found.interval or "-"),
        " ".join(f"{one:.2f}" for one in found.by_round) or "-",
        *slowdowns,
    ]


def _rates_by_round(run: Run) -> str:
    """Every measurement: what counts by round, and what was measured again and does not."""
    rows = []
    for one in medians(run.measurements):
        place = one.system, one.path, one.key
        counted = by_round([each for each in run.measurements if (each.system, each.path, each.key) == place])
        aside = [each for each in run.set_aside if (each.system, each.path, each.key) == place]
        rows.append(
            [
                f"{one.system}, {one.path}: {one.workload}: {one.case}",
                " ".join(_marked(each) for _, each in sorted(counted.items())),
                " ".join(_marked(each) for each in aside) or "-",
            ]
        )
    return table(("msgs/s (n: noisy)", "by round", "set aside"), rows)


def _marked(one: Measurement) -> str:
    return f"{figure(one.messages_per_second)}{'n' if one.is_noisy else ''}"


def _images(plots: Sequence[Path], run: Run, folder: Path) -> str:
    own = [path for path in plots if path.name.rpartition("-")[0] == run.name]
    return "\n".join(f"![{path.stem}]({os.path.relpath(path, folder)})" for path in own)
