"""Makes docs/performance.md and its plots from files of runs: `python -m bench.page bench/out/full.json bench/out/peers.json`.

Law: every figure on the page is from a run, with its conditions beside it. What only a person can say (where the time goes, what
would have to change) stands in docs/performance-notes.md, and is put behind the figures as it is. The files of the runs are kept
beside the plots, so that the page can be made again with some of them newer.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cpu import RECORD, changes, read_record
from bench.environment import Refused
from bench.failover import LONGEST_PAUSE, MESSAGES, WATCHED_SECONDS
from bench.musts import FAILOVER_GOALS, GOALS, GROWTHS, PEER, standings
from bench.own_cluster import NAME
from bench.results import Disturbance, Measurement, Run, medians, read_run
from bench.tables import conditions, failovers_table, figure, measurements_table, processes_table, table

PAGE, NOTES = Path("docs/performance.md"), Path("docs/performance-notes.md")
PLOTS = Path("docs/performance")
_TITLES = {
    "W1": "W1: publishing in transactions",
    "W2": "W2: accepting and publishing in one transaction",
    "W3": "W3: plain durable publishing, and consuming with acceptance",
    "W4": "W4: distributed transactions",
    "W6": "W6: latency under half of the highest throughput",
    "W7": "W7: scale, one dimension at a time",
}
_NOT_MEASURED = ("not measured", "-", "-")
_INTRODUCTION = """\
# Performance

Made by `python -m bench.page` from the results of `make bench`, `make bench-full` and `make bench-peers`; not written
by hand. Bodies are of 1 KiB and durable unless a line says otherwise; every server, etcd and the load programs share
one machine, so a rate is what is left of its processors. "Servers" and "client" are processor time in microseconds for
each message; "others" is what processes that have nothing to do with it used meanwhile, in cores, and "slowdown", where
it was looked for, how much longer a small piece of work took on the slower processor than at best in that run, whoever
on the host did that; a line is noisy when that was more than 0.35, or 1.25; "sync" is the median of one fdatasync of
4 KiB in the data directory meanwhile. "Full" marks a load program with no time left: then the servers could perhaps do
more.
"""


_FAILOVERS = f"""\
In a trial one client commits one transaction of {MESSAGES} messages after the other, on servers that were at rest before; what is
shown are the seconds from the harm to the first commit of a transaction begun after it. The supervisor notices SIGKILL
and revokes the lease, hence less than the lease; SIGSTOP is noticed by nobody until the lease ends. etcd's leader is one
of three members and stays away for {WATCHED_SECONDS:g} s; the {LONGEST_PAUSE} is the longest time without a commit meanwhile.
"""


def page(runs: Sequence[Run], plots: Sequence[Path], record: str, notes: str) -> str:
    """The text of it. `plots`: files beside it; `record`: a table of the last entry; `notes`: Markdown, or nothing."""
    parts = [_INTRODUCTION]
    peers = [run for run in runs if run.kind == "peers"]
    for run in peers:
        parts += ["## Beside other systems", conditions(run), _syncs(run), _ratios(run)]
        parts += [_images(plots, run), measurements_table(medians(run.measurements), with_system=True)]
    for run in runs:
        if run.kind != "peers":
            parts += _own(run, plots)
    parts += ["## Goals", goals_table(runs)]
    if record:
        parts += ["## Processor time of a message at each hop", f"The last entry of `{RECORD}`.", record]
    return (
        "\n\n".join([*(part.strip() for part in parts if part), *([notes.strip()] if notes else [])]) + "\n"
    )


def _own(run: Run, plots: Sequence[Path]) -> list[str]:
    found = medians(run.measurements)
    parts = ["## Lockstep alone", conditions(run), _syncs(run), _images(plots, run)]
    for workload, title in _TITLES.items():
        ours = [one for one in found if one.workload == workload]
        if ours:
            parts += [f"### {title}", measurements_table(ours)]
    if run.failovers:
        parts += ["### W5: failover", _FAILOVERS, failovers_table(run.failovers)]
    return [*parts, "### Every process", processes_table(found)]


def goals_table(runs: Sequence[Run]) -> str:
    """What was reached of every goal, by the last run that has it; and by how much it is missed."""
    found = {one.case: (one, run) for run in runs for one in _sdk(run)}
    rows = []
    for goal in GOALS:
        cells = [f"{goal.case.workload}: {goal.case.title}", f"{goal.figure:,.0f} {goal.unit}"]
        if (measured := found.get(goal.case.title)) is None:
            rows.append([*cells, *_NOT_MEASURED])
            continue
        value = goal.value(measured[0])
        rows.append([*cells, figure(value), goal.result(value), _conditions(*measured)])
    rows += _failover_goals(runs)
    for growth in GROWTHS:
        cells = [f"W7: a transaction's cost, {growth.what}", f"{growth.share_max:+.0%} at most"]
        first, last = found.get(growth.first.title), found.get(growth.last.title)
        if first is None or last is None:
            rows.append([*cells, *_NOT_MEASURED])
            continue
        share = last[0].server_us / first[0].server_us - 1
        result = "reached" if share <= growth.share_max else "missed"
        rows.append([*cells, f"{share:+.0%}", result, _conditions(*last)])
    return table(("goal", "figure", "measured", "result", "fdatasync"), rows)


def _failover_goals(runs: Sequence[Run]) -> list[list[str]]:
    found = {one.what: (one, run) for run in runs for one in run.failovers if one.seconds}
    rows = []
    for goal in FAILOVER_GOALS:
        cells = [f"W5: {goal.what}", str(goal)]
        if (measured := found.get(goal.what)) is None:
            rows.append([*cells, *_NOT_MEASURED])
            continue
        trial = measured[0]
        rows.append([*cells, f"{goal.value(trial):.2f}", goal.result(trial), _conditions(*measured)])
    return rows


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
        ]
        for one in standings(run.measurements)
    ]
    return table((f"ratio to {PEER} (medians)", "ratio", "must", "result"), rows)


def _images(plots: Sequence[Path], run: Run) -> str:
    own = [path for path in plots if path.name.startswith(f"{run.kind}-")]
    return "\n".join(f"![{path.stem}]({path.parent.name}/{path.name})" for path in own)


def main(files: Sequence[Path]) -> None:
    from bench.plots import draw  # Only this needs matplotlib.

    runs = [read_run(path) for path in files]
    plots = [path for run in runs for path in draw(run, PLOTS)]
    entries = read_record(RECORD)
    record = changes(entries[-1], entries[-2] if len(entries) > 1 else None) if entries else ""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(runs, plots, record, NOTES.read_text() if NOTES.exists() else ""))
    for path in files:
        kept = PLOTS / path.name
        if path.resolve() != kept.resolve():
            shutil.copyfile(path, kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="of runs, as the harness wrote them")
    try:
        main(parser.parse_args().files)
    except Refused as refused:
        sys.exit(f"bench: refused: {refused}")
