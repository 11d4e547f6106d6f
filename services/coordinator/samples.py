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
        yield Sample("lockstep_distributed_in_hand", len(held))
        yield Sample("lockstep_distributed_open", core.open_count)
        oldest_ms = min((begun_ms(one) for one in held), default=0)
        age_seconds = time.time() - oldest_ms / 1000 if oldest_ms else 0.0
        yield Sample("lockstep_distributed_oldest_seconds", age_seconds)
        doubts = core.doubts.figures(read_now().wall_ms)
        yield Sample("lockstep_distributed_in_doubt", doubts.count)
        yield Sample("lockstep_distributed_in_doubt_oldest_seconds", doubts.oldest_seconds)
        yield Sample("lockstep_distributed_in_doubt_overdue", doubts.overdue)
        yield Sample("lockstep_distributed_hazards_total", driver.hazards_total)
        yield Sample("lockstep_distributed_holds_total", core.hold.total)
        yield Sample("lockstep_distributed_held_seconds_total", core.hold.total_ms / 1000)
        for step, count in driver.steps_total.items():
            yield Sample("lockstep_distributed_steps_total", count, {"step": step.value})
