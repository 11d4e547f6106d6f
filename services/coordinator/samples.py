"""What /metrics shows of a coordinator: figures that it has anyway."""

import time
from collections.abc import Iterator

from lockstep.core.branch_names import begun_ms
from lockstep.runtime.clock import read_now
from lockstep.runtime.metrics import Sample
from services.coordinator.driver import CoordinatorDriver


class CoordinatorSamples:
    """Lives as long as the process; read at each scrape."""

    def __init__(self, driver: CoordinatorDriver) -> None:
        self._driver = driver

    def read(self) -> Iterator[Sample]:
        driver, core = self._driver, self._driver.core
        held = core.transactions
        yield Sample("lockstep_distributed_in_hand", "Transactions that are being ended here.", len(held))
        yield Sample("lockstep_distributed_open", "Transactions that were begun here.", core.open_count)
        oldest_ms = min((begun_ms(one) for one in held), default=0)
        age_seconds = time.time() - oldest_ms / 1000 if oldest_ms else 0.0
        yield Sample(
            "lockstep_distributed_oldest_seconds",
            "Age of the oldest in hand, since it was begun.",
            age_seconds,
        )
        doubts = core.doubts.figures(read_now().wall_ms)
        yield Sample(
            "lockstep_distributed_in_doubt",
            "Transactions that are not over, in the log or here.",
            doubts.count,
        )
        yield Sample(
            "lockstep_distributed_in_doubt_oldest_seconds",
            "Age of the oldest of them: alarm on it.",
            doubts.oldest_seconds,
        )
        yield Sample(
            "lockstep_distributed_in_doubt_overdue",
            "Those that are not over for longer than --in-doubt-ms.",
            doubts.overdue,
        )
        yield Sample(
            "lockstep_distributed_hazards_total",
            "Branches that ended otherwise than decided.",
            driver.hazards_total,
        )
        yield Sample(
            "lockstep_distributed_holds_total",
            "Times that commits were held for readers of committed events.",
            core.hold.total,
        )
        yield Sample(
            "lockstep_distributed_held_seconds_total",
            "How long commits were held for readers of committed events, in all.",
            core.hold.total_ms / 1000,
        )
        for step, count in driver.steps_total.items():
            yield Sample("lockstep_distributed_steps_total", "Steps reached.", count, {"step": step.value})
