"""Attacks: what a bystander of one AMQP connection meets while strangers flood the ports of a cluster, with each attack alone,
with all of them at once, and in peace before and behind them.

Law: no attack takes a lease or fails a bystander's message; and of a hundred messages that it sends beside one attack, on a quiet
machine, 99 are answered within half a second. Strangers use the same processors as the cluster: where there are few, what the
bystander waits under all attacks says as much of that. `make bench-attacks`.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.deploying import deployed
from bench.measuring import load
from bench.scratch import add_directory, run_on_disk
from tests.chaos.attacked import Figures, attack, prepare
from tests.chaos.attackers import ATTACKS

SET = "bench"
BROKERS = ["B1", "B2", "B3"]
P99_MS_MAX = 500.0
COLUMNS = (
    *("messages", "p50 ms", "p99 ms", "longest ms", "failures", "leases lost", "promotions", "load"),
    "verdict",
)


def faults(found: Figures, attackers: int) -> list[str]:
    """What came out otherwise than it is to."""
    said = {
        "lease lost": found.leases_lost + found.promotions > 0,
        "message failed": found.failures > 0 or not found.answers,
        f"p99 above {P99_MS_MAX:.0f} ms": attackers <= 1 and found.p99_ms > P99_MS_MAX,
    }
    return [fault for fault, is_so in said.items() if is_so]


async def main(seconds: float, scratch: Path) -> int:
    """Returns the exit status: 1 if a lease was lost, the bystander lost its connection, or it waited for too long."""
    shown = Table("attack")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    has_failed = False
    async with deployed(scratch, sets={SET: BROKERS}, coordinators=1, proxies=1) as (deployment, _):
        await prepare(deployment, SET)
        every = {name: (name,) for name in ATTACKS}
        for title, attacks in {"none": (), **every, "all at once": tuple(ATTACKS), "none again": ()}.items():
            found = await attack(deployment, SET, attacks, seconds)
            times = [f"{found.p50_ms:.0f}", f"{found.p99_ms:.0f}", f"{found.longest_ms:.0f}"]
            counts = map(str, (found.failures, found.leases_lost, found.promotions))
            wrong = faults(found, len(attacks))
            verdict = ", ".join(wrong) or "ok"
            name = title.replace("_", " ")
            shown.add_row(name, str(found.answers), *times, *counts, f"{load():.1f}", verdict)
            has_failed |= bool(wrong)
    Console(width=140).print(shown)
    return int(has_failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    add_directory(parser)
    given = parser.parse_args()
    run_on_disk(lambda scratch: main(given.seconds, scratch), given.directory)
