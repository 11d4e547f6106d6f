"""The simulator's command: `python -m tests.simulation --seeds 300 --start 0 [--scenario NAME] [--jobs 2]`.

Other families of seeds: `--coordinators`, `--hand-overs`. In each of them a share of the seeds has tiny steps (`tiny_steps.py`).

Ends with 1 if a promise was broken, or if a branch that must be reached never was (from 300 seeds on).
"""

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from lockstep.core.ids import SetName
from tests.simulation.branches import MUST_BE_REACHED, missing
from tests.simulation.coordinated import REACHED_BY_COORDINATORS, draw_coordinated
from tests.simulation.handed_over import REACHED_BY_HAND_OVERS, draw_handed_over
from tests.simulation.options import Options, draw
from tests.simulation.run import Report, run

SEEDS = 300
SEEDS_FOR_BRANCHES = 300
PROGRESS_SEEDS = 100


class Family(NamedTuple):
    """Seeds with something in common."""

    draw: Callable[[int], Options]
    wanted: dict[str, str]
    """Branches that many of them reach."""


FAMILIES = {
    "": Family(draw, MUST_BE_REACHED),
    "--coordinators": Family(draw_coordinated, REACHED_BY_COORDINATORS),
    "--hand-overs": Family(draw_handed_over, REACHED_BY_HAND_OVERS),
}
"""By the option that asks for them."""


def run_seed(seed: int, family: str = "") -> Report:
    """One seed, in a worker process."""
    try:
        return run(FAMILIES[family].draw(seed))
    except Exception as error:
        import traceback

        report = Report(seed)
        report.broken.append(f"crash: {error!r}\n{traceback.format_exc()}")
        return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many; {SEEDS}, of a scenario its own alone")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--scenario", default="", help="run this scenario (all: every one) instead of seeds")
    parser.add_argument(
        "--coordinators", action="store_true", help="seeds with coordinators and distributed transactions"
    )
    parser.add_argument("--hand-overs", action="store_true", help="seeds with sets that are handed over")
    parser.add_argument("--trace", default="", help="print the timeline of this set (one seed, one job)")
    parser.add_argument("--digests", action="store_true", help="print each seed's digest, to compare runs")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds although one has failed")
    arguments = parser.parse_args()
    if arguments.scenario:
        from tests.simulation.scenarios import run_named

        return run_named(arguments.scenario, range(arguments.start, arguments.start + (arguments.seeds or 0)))
    family = "--coordinators" if arguments.coordinators else "--hand-overs" if arguments.hand_overs else ""
    if arguments.trace:
        options = FAMILIES[family].draw(arguments.start)
        report = run(options, traced=frozenset((SetName(arguments.trace),)))
        print(failure(report, family) if report.broken else "nothing broken")
        return 1 if report.broken else 0
    seeds = range(arguments.start, arguments.start + (arguments.seeds or SEEDS))
    failed = 0
    total = Summary()
    with multiprocessing.Pool(arguments.jobs) as pool:
        one = partial(run_seed, family=family)
        reports = pool.imap(one, seeds) if arguments.jobs > 1 else map(one, seeds)
        for report in reports:
            total.add(report)
            if total.seeds % PROGRESS_SEEDS == 0:
                print(f"{total.seeds} of {len(seeds)} seeds", file=sys.stderr, flush=True)
            if arguments.digests:
                print(f"seed {report.seed}: {report.digest}", flush=True)
            if report.broken:
                failed += 1
                print(failure(report, family), flush=True)
                if not arguments.keep_going:
                    break
    total.print()
    if failed:
        return 1
    wanted = FAMILIES[family].wanted
    unreached = missing(total.branches, wanted) if len(seeds) >= SEEDS_FOR_BRANCHES else []
    for name in unreached:
        print(f"never reached: {name}")
    return 1 if unreached else 0


def failure(report: Report, family: str = "") -> str:
    """What to read, and the one command that repeats it; `family`: the option that asks for its seeds."""
    shown = "\n".join(f"  {sentence}" for sentence in report.broken[:8])
    more = f"\n  ... and {len(report.broken) - 8} more" if len(report.broken) > 8 else ""
    return (
        f"seed {report.seed} broke {len(report.broken)}:\n{shown}{more}\n"
        f"  repeat: python -m tests.simulation --seeds 1 --jobs 1 --start {report.seed} {family}".rstrip()
    )


class Summary:
    """Totals over all seeds of a run."""

    def __init__(self) -> None:
        self.seeds = 0
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.branches: Counter[str] = Counter()
        self.simulated_us = 0
        self.real_seconds = 0.0

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.totals += report.totals
        self.faults += report.faults
        self.branches += report.branches
        self.simulated_us += report.simulated_us
        self.real_seconds += report.real_seconds

    def print(self) -> None:
        ratio = self.simulated_us / 1e6 / self.real_seconds if self.real_seconds else 0.0
        print(
            f"{self.seeds} seeds, {self.simulated_us / 1e6:.0f} s simulated in {self.real_seconds:.1f} s of one core: "
            f"{ratio:.0f} times faster"
        )
        for title, counts in (("totals", self.totals), ("faults", self.faults), ("branches", self.branches)):
            print(f"{title}:")
            for name, count in sorted(counts.items()):
                print(f"  {count:9}  {name}")


if __name__ == "__main__":
    sys.exit(main())
