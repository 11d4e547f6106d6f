"""`recover()` on a new primary: thousands of prepared branches, the primary killed, how soon its successor lists them all.

That they are all there, that their messages are locked and that both ends work is checked on the way.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import SyncProbe
from bench.scratch import add_directory, run_on_disk
from tests.integration.many_branches import Recovery, recover_many

SET = "bench"


async def main(sizes: list[int], scratch: Path) -> None:
    shown = Table(title="recover() after SIGKILL of the primary, three brokers on one machine")
    for heading in ("branches", "prepare s", "killed to listed s", "recover() ms", "ended s", "fdatasync ms"):
        shown.add_column(heading, justify="right")
    for number, size in enumerate(sizes):
        shown.add_row(*await _trial(size, scratch / str(number)))
    Console().print(shown)


async def _trial(size: int, home: Path) -> tuple[str, ...]:
    async with (
        deployed(home, sets={SET: ["B1", "B2", "B3"]}) as (deployment, _),
        SyncProbe(home) as probe,
    ):
        done: Recovery = await recover_many(deployment, SET, size)
    return (
        str(done.branches),
        f"{done.prepare_seconds:.2f}",
        f"{done.promotion_seconds:.2f}",
        f"{1000 * done.recover_seconds:.0f}",
        f"{done.commit_seconds:.2f}",
        f"{probe.median_ms:.2f}",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, nargs="+", default=[1000, 5000])
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(lambda scratch: main(given.branches, scratch), given.directory)
