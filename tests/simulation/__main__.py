"""The simulator's command: `python -m tests.simulation --seeds 300 --start 0 [--scenario NAME] [--coordinators] [--jobs 2]`.

Ends with 1 if a promise was broken, or if a branch that must be reached never was (from 300 seeds on).
"""

import argparse
import multiprocessing
import sys
from collections import Counter
from functools import partial

from lockstep.core.ids import SetName
from tests.simulation.branches import MUST_BE_REACHED, missing
from tests.simulation.coordinated import REACHED_BY_COORDINATORS, draw_coordinated
from tests.simulation.options import draw
from tests.simulation.run import Report, run

SEEDS_FOR_BRANCHES = 300
PROGRESS_SEEDS = 100


def run_seed(seed: int, is_coordinated: bool = False) -> Report:
    """One seed, in a worker process."""
    try:
        return run(draw_coordinated(seed) if is_coordinated else draw(seed))
    except Exception as error:
        import traceback

        report = Report(seed)
        report.broken.append(f"crash: {error!r}\n{traceback.format_exc()}")
        return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--scenario", default="", help="run this scenario (all: every one) instead of seeds")
    parser.add_argument(
        "--coordinators", action="store_true", help="seeds with coordinators and distributed transactions"
    )
    parser.add_argument("--trace", default="", help="print the timeline of this set (one seed, one job)")
    parser.add_argument("--digests", action="store_true", help="print each seed's digest, to compare runs")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds although one has failed")
    arguments = parser.parse_args()
    if arguments.scenario:
        from tests.simulation.scenarios import run_named

        return run_named(arguments.scenario)
    if arguments.trace:
        options = draw_coordinated(arguments.start) if arguments.coordinators else draw(arguments.start)
        report = run(options, traced=frozenset((SetName(arguments.trace),)))
        print(failure(report) if report.broken else "nothing broken")
        return 1 if report.broken else 0
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    failed = 0
    total = Summary()
    with multiprocessing.Pool(arguments.jobs) as pool:
        one = partial(run_seed, is_coordinated=arguments.coordinators)
        reports = pool.imap(one, seeds) if arguments.jobs > 1 else map(one, seeds)
        for report in reports:
            total.add(report)
            if total.seeds % PROGRESS_SEEDS == 0:
                print(f"{total.seeds} of {len(seeds)} seeds", file=sys.stderr, flush=True)
            if arguments.digests:
                print(f"seed {report.seed}: {report.digest}", flush=True)
            if report.broken:
                failed += 1
                print(failure(report, arguments.coordinators), flush=True)
                if not arguments.keep_going:
                    break
    total.print()
    if failed:
        return 1
    wanted = REACHED_BY_COORDINATORS if arguments.coordinators else MUST_BE_REACHED
    unreached = missing(total.branches, wanted) if arguments.seeds >= SEEDS_FOR_BRANCHES else []
    for name in unreached:
        print(f"never reached: {name}")
    return 1 if unreached else 0


def failure(report: Report, is_coordinated: bool = False) -> str:
    """What to read, and the one command that repeats it."""
    shown = "\n".join(f"  {sentence}" for sentence in report.broken[:8])
    more = f"\n  ... and {len(report.broken) - 8} more" if len(report.broken) > 8 else ""
    return (
        f"seed {report.seed} broke {len(report.broken)}:\n{shown}{more}\n"
        f"  repeat: python -m tests.simulation --seeds 1 --jobs 1 --start {report.seed}"
        f"{' --coordinators' if is_coordinated else ''}"
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
