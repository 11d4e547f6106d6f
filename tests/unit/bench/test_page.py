"""The page of figures, and the tables on it."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from bench.cases import W7, Case
from bench.environment import Disk, Machine
from bench.failover import LEADER_KILLED, PRIMARY_KILLED, PRIMARY_STALLED
from bench.musts import GOALS, GROWTHS, MUSTS, PEER
from bench.page import page
from bench.plots import draw
from bench.report import write_report
from bench.results import BESIDE_OTHERS, Measurement, Run, Trial, read_run
from bench.sections import goals_table
from bench.tables import failovers_table, measurements_table, processes_table
from tests.unit.bench.made import measurement, trial

MACHINE = Machine("a processor", 2, 24.0, "Linux 6", "3.11", {"grpcio": "1.85.1"})


def run(kind: str, measurements: list[Measurement], failovers: list[Trial] | None = None) -> Run:
    started = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    disk = Disk("ext4", 5000.0)
    return Run(
        kind, started, "abc", MACHINE, disk, measurements, failovers or [], {"lockstep": "three copies"}
    )


def test_a_line_shows_its_figures_and_whether_others_disturbed_it() -> None:
    quiet, noisy = (measurement("tx", 2000.0, other_cores=cores) for cores in (0.1, 0.5))
    slow, unknown = (measurement("tx", 2000.0, slowdown=slowdown) for slowdown in (1.3, 0.0))
    lines = measurements_table([quiet, noisy, slow, unknown], with_system=True).splitlines()
    assert lines[2] == (
        "| lockstep | W1: tx | sdk | 200 | 2,000 | 2.00 | 4.00 | 8.00 | 30.0 | 5.0 | 0.50 | 0.20 | 0.10 | 1.00 | - |"
    )
    assert lines[3].endswith("| 0.50 (noisy) | 1.00 | - |")
    assert lines[4].endswith("| 0.00 | 1.30 (noisy) | - |")
    assert lines[5].endswith("| 0.00 | - | - |")


def test_a_line_says_what_other_systems_of_the_run_did_meanwhile() -> None:
    idle, worked, restless = (
        measurement("tx", 2000.0, system_cores={"rabbitmq": cores, "artemis": 0.02}, restless=names)
        for cores, names in ((0.05, []), (0.6, []), (0.05, ["rabbitmq"]))
    )
    lines = measurements_table([idle, worked, restless], with_system=True).splitlines()
    assert lines[2].endswith("| 1.00 | 0.07 |")
    assert lines[3].endswith("| 1.00 | 0.62 (rabbitmq) |")
    assert lines[4].endswith("| 1.00 | 0.07, not at rest: rabbitmq |")
    assert [one.is_noisy for one in (idle, worked, restless)] == [False, True, True]


def test_a_load_program_without_time_left_is_marked() -> None:
    assert "0.95 (full)" in measurements_table([measurement("tx", 2000.0, client_cores=0.95)])


def test_every_process_has_its_cell_and_one_that_was_not_there_a_dash() -> None:
    lines = processes_table([measurement("tx", 10.0)]).splitlines()
    assert lines[0] == "| us a message, cores, resident | primary B1 | store B1 | client |"
    assert lines[2] == "| W1: tx, sdk | 20 us, 0.50, 100 MiB | 10 us, 0.25, 50 MiB | 5 us, 0.50, 40 MiB |"


def test_failovers_show_the_median_the_worst_and_whether_that_is_good_enough() -> None:
    lines = failovers_table([trial(PRIMARY_KILLED, 0.3, 0.9, 0.2), trial("none"), trial(LEADER_KILLED, 0.1)])
    assert lines.splitlines()[2:] == [
        f"| W5: {PRIMARY_KILLED} | 3 | 0.30 | 0.90 | 0.5 s median, 1.5 s worst | reached | 0.20 | 0.10 | 1.00 |",
        f"| W5: {LEADER_KILLED} | 1 | 0.10 | 0.10 | - | - | 0.20 | 0.10 | 1.00 |",
    ]


def test_failovers_say_which_of_their_goals_is_missed_and_by_how_much() -> None:
    lines = failovers_table([trial(PRIMARY_KILLED, 0.3, 1.8), trial(PRIMARY_STALLED, 4.2)]).splitlines()
    assert "| median 110 % above, worst 20 % above |" in lines[2]
    assert "| 3.5 s worst | 20 % above |" in lines[3]
    one, close = failovers_table(
        [trial(PRIMARY_KILLED, 0.3, 0.3, 1.8), trial(PRIMARY_STALLED, 3.507)]
    ).splitlines()[2:]
    assert "| median reached, worst 20 % above |" in one
    assert "| 0.2 % above |" in close


def test_failovers_show_whether_others_disturbed_them_where_that_was_looked_for() -> None:
    noisy = trial(LEADER_KILLED, 0.1, other_cores=0.5, slowdown=1.3)
    unknown = trial(LEADER_KILLED, 0.1, sync_ms=0.0, other_cores=0.0, slowdown=0.0)
    lines = failovers_table([noisy, unknown]).splitlines()
    assert lines[2].endswith("| 0.20 | 0.50 (noisy) | 1.30 (noisy) |")
    assert lines[3].endswith("| - | 0.00 | - |")


def test_goals_of_failovers_stand_among_the_others_measured_or_not() -> None:
    found = run("full", [], [trial(PRIMARY_KILLED, 0.3, 0.6, 1.8, slowdown=1.3)])
    lines = [line for line in goals_table([found]).splitlines() if line.startswith("| W5: ")]
    assert lines == [
        f"| W5: {PRIMARY_KILLED} | 0.5 s median | 0.60 | 20 % above | 0.20 ms, noisy | abc |",
        f"| W5: {PRIMARY_KILLED} | 1.5 s worst | 1.80 | 20 % above | 0.20 ms, noisy | abc |",
        f"| W5: {PRIMARY_STALLED} | 3.5 s worst | not measured | - | - | - |",
    ]


def test_of_failovers_the_run_with_the_most_trials_counts_and_then_the_worse_one() -> None:
    runs = [
        run(kind, [], [trial(PRIMARY_STALLED, *each)]) for kind, each in (("a", (3.0, 4.2)), ("b", (3.1,)))
    ]
    assert f"| W5: {PRIMARY_STALLED} | 3.5 s worst | 4.20 | 20 % above |" in goals_table(runs)
    for better, worse in ((3.3, 4.2), (7.0, 7.0)):
        runs.insert(1, run("c", [], [trial(PRIMARY_STALLED, 3.2, better)]))
        assert f"| W5: {PRIMARY_STALLED} | 3.5 s worst | {worse:.2f} |" in goals_table(runs)


def test_a_series_of_failovers_that_was_cut_short_reaches_no_goal_and_says_so() -> None:
    short = trial(PRIMARY_STALLED, 3.2, cut_short="nothing committed")
    assert f"| W5: {PRIMARY_STALLED} | 3.5 s worst | 3.20 | missed |" in goals_table(
        [run("full", [], [short])]
    )
    assert f"| W5: {PRIMARY_STALLED} | 1, cut short | 3.20 |" in failovers_table([short])


def test_of_several_runs_the_least_disturbed_measurement_counts_and_of_undisturbed_ones_the_newest() -> None:
    case = GOALS[0].case

    def counted(*each: tuple[float, float]) -> str:
        """Of measurements with these slowdowns, one a day; their rates are their places."""
        runs = [
            structs.replace(
                run("short", [measurement(case, 10.0 * place, slowdown=slowdown, other_cores=cores)]),
                started=datetime(2026, 1, place, tzinfo=UTC),
                commit=f"of {place}",
            )
            for place, (slowdown, cores) in enumerate(each, 1)
        ]
        answers = {goals_table(some).splitlines()[2].split(" | ")[-1] for some in (runs, runs[::-1])}
        assert len(answers) == 1, "the order of the files decides nothing"
        return answers.pop()

    # The newest of those that are quiet.
    assert counted((1.0, 0.0), (1.2, 0.1), (1.3, 0.0)) == "of 2 |"
    assert counted((1.9, 0.0), (1.6, 0.0), (1.0, 0.7)) == "of 2 |"
    assert counted((0.0, 0.0), (1.5, 0.0)) == "of 1 |"


def test_of_undisturbed_measurements_the_longest_counts_though_a_shorter_one_is_newer_and_better() -> None:
    case = GOALS[0].case
    runs = [
        structs.replace(
            run(kind, [measurement(case, rate, seconds=seconds)]), started=datetime(2026, 1, day, tzinfo=UTC)
        )
        for kind, rate, seconds, day in (("full", 60_000.0, 8.0, 1), ("short", 90_000.0, 1.51, 2))
    ]
    assert "| 60,000 | 14 % below |" in goals_table(runs)
    assert "| 60,000 | 14 % below |" in goals_table(runs[::-1])


def test_a_growth_is_of_two_measurements_of_one_run() -> None:
    growth = GROWTHS[0]
    first = run("full", [measurement(growth.first, 100.0)])
    both = run(
        "full",
        [measurement(growth.first, 100.0, slowdown=1.5), measurement(growth.last, 100.0, slowdown=1.5)],
    )
    assert "| +0% | reached | 0.20 ms, noisy |" in goals_table([first, both])


def test_goals_say_by_how_much_they_are_missed() -> None:
    first, second = GOALS[0], GOALS[3]
    found = [
        measurement(first.case, first.figure / 2),
        measurement(second.case, 10 * second.figure),
    ]
    lines = goals_table([run("short", found)]).splitlines()[2:]
    assert lines[0] == "| W1: tx of 100, 4 clients | 70,000 msgs/s | 35,000 | 50 % below | 0.20 ms | abc |"
    assert lines[3] == "| W1: tx of 1, 4 clients | 2,400 tx/s | 2,400 | reached | 0.20 ms | abc |"
    assert "not measured" in lines[1]


def test_a_latency_is_to_be_low_and_a_cost_is_not_to_grow() -> None:
    alone, (queues, depth, _) = next(goal.case for goal in GOALS if goal.unit == "ms p50"), GROWTHS
    found = [
        measurement(alone, 100.0, p99_ms=5.0),
        measurement(queues.first, 100.0),
        measurement(queues.last, 100.0, primary_us=27.0),
        measurement(depth.first, 100.0),
        measurement(depth.last, 100.0, primary_us=27.5),
    ]
    lines = goals_table([run("full", found)]).splitlines()
    assert "| W1: tx of 1, 1 client | 2 ms p50 | 2.0 | reached | 0.20 ms | abc |" in lines
    assert "| W1: tx of 1, 1 client | 4 ms p99 | 5.0 | 25 % above | 0.20 ms | abc |" in lines
    assert lines[-3].endswith("| +20% at most | +20% | reached | 0.20 ms | abc |")
    assert lines[-2].endswith("| +20% at most | +21% | missed | 0.20 ms | abc |")
    assert lines[-1].endswith("| +20% at most | not measured | - | - | - |")


def test_a_goal_is_not_looked_for_in_another_workload() -> None:
    scaled = replace(GOALS[1].case, workload="W7")
    assert scaled.title == GOALS[1].case.title
    assert "not measured" in goals_table([run("full", [measurement(scaled, 1.0)])]).splitlines()[3]


def test_the_page_has_conditions_ratios_figures_and_notes() -> None:
    case = MUSTS[0].case
    peers = run("peers", [measurement(case, 60.0), measurement(case, 20.0, PEER, path="C")])
    own = run("full", [measurement(case, 50.0)], [trial(PRIMARY_KILLED, 0.3)])
    text = page(
        [peers, own], [Path("docs/performance/full-cpu.png")], "| hops |", "## Where the time goes\n\nHere."
    )
    for part in (
        "Data on ext4, 5,000 fdatasync/s of 1 KiB (0.20 ms)",
        "**What holds where.**",
        f"| W1: {case.title} | 3.00* (1 round; peers) | not measured |",
        f"| W1: {case.title} | 3.00 | 1 round | 3.00 | 1.00 | 1.00 | 3 | reached |",
        f"| lockstep, sdk: W1: {case.title} | 60.0 | - |",
        "### Every process of rabbitmq",
        "**lockstep**: three copies.",
        "![full-cpu](performance/full-cpu.png)",
        "### W5: failover\n\nIn a trial one client commits",
        "| hops |",
        "## Where the time goes",
    ):
        assert part in text, part


def test_a_run_of_failovers_alone_has_no_table_of_processes_and_no_plots_of_another_run() -> None:
    whole = run("full", [measurement(MUSTS[0].case, 50.0)])
    alone = run("full", [], [trial(PRIMARY_KILLED, 0.3)])
    text = page([whole, alone], [Path("docs/performance/full-cpu.png")], "", "")
    assert "### W5: failover" in text
    assert text.count("![full-cpu]") == text.count("### Every process") == 1


def test_a_run_leaves_its_figures_its_tables_and_its_plots(tmp_path: Path) -> None:
    of = run("full", [measurement(MUSTS[0].case, 50.0)])
    write_report(of, tmp_path / "mine.json")
    assert read_run(tmp_path / "mine.json") == of
    text = (tmp_path / "mine.md").read_text()
    assert "| W1: tx of 100, 4 clients | 70,000 msgs/s | 50.0 | 100 % below | 0.20 ms | abc |" in text
    images = re.findall(r"!\[.*\]\((.*)\)", text)
    assert images
    assert all((tmp_path / image).read_bytes().startswith(b"\x89PNG") for image in images)


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    case = MUSTS[0].case
    found = [measurement(case, 60.0), measurement(case, 20.0, PEER, path="C")]
    names = [path.name for path in draw(run("peers", found), tmp_path)]
    assert names == ["peers-throughput.png", "peers-cpu.png", "peers-ratios.png"]
    bigger = structs.replace(run("peers", found), machine=structs.replace(MACHINE, cores=8))
    more = [path.name for path in draw(bigger, tmp_path)]
    assert more == ["peers-8-cores-throughput.png", "peers-8-cores-cpu.png", "peers-8-cores-ratios.png"]
    text = page([bigger], [Path("docs/performance") / name for name in (*names, *more)], "", "")
    assert "## Beside other systems, on 8 cores" in text
    assert "![peers-8-cores-cpu]" in text and "![peers-cpu]" not in text
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_latency_and_scale_are_drawn_where_they_were_measured(tmp_path: Path) -> None:
    found = [measurement(Case("W6", "publish", 10, 4, rate=100.0), 1000.0)]
    found += [measurement(case, 1000.0) for case in (*W7["queues"], W7["brokers"][0])]
    names = [path.name for path in draw(run("full", found), tmp_path)]
    assert names == ["full-latency.png", "full-scale.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_a_run_of_the_musts_alone_stands_beside_a_whole_one_with_plots_of_its_own(tmp_path: Path) -> None:
    case = MUSTS[0].case
    runs = [
        run(kind, [measurement(case, own), measurement(case, 20.0, PEER, path="C")])
        for kind, own in (("full", 50.0), ("musts", 70.0), ("peers", 40.0))
    ]
    plots = [path for one in runs for path in draw(one, tmp_path)]
    assert len(set(plots)) == len(plots)
    text = page(runs, plots, "", "")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "## Beside other systems",
        "## Beside other systems: what has a must",
        "## Lockstep alone",
        "## Goals",
    ]
    whole, alone = text.split("## Beside other systems: what has a must\n")
    assert (
        "| 1.00 | 1.00 | 3 | reached |" in alone
        and "![musts-ratios]" in alone
        and "![peers-ratios]" not in alone
    )
    assert (
        "| 1.00 | 1.00 | 3 | missed |" in whole
        and "![peers-ratios]" in whole
        and "![musts-ratios]" not in whole
    )


def test_what_is_missing_stands_in_the_section_of_its_run() -> None:
    case = MUSTS[0].case
    for kind in ("full", *BESIDE_OTHERS):
        lacking = structs.replace(
            run(kind, [measurement(case, 60.0)]), missing={"W2 tx": "a load program ended with 3"}
        )
        assert "- missing: W2 tx: a load program ended with 3" in page([lacking], [], "", "").splitlines()
