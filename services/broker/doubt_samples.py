"""What /metrics shows of branches that stay prepared, for each set that is led here."""

from collections.abc import Iterator

from lockstep.core.ids import SetName
from lockstep.runtime.clock import read_now
from lockstep.runtime.driver import Driver
from lockstep.runtime.metrics import Sample
from services.broker.core.replica import Replica


def doubt_samples(driver: Driver) -> Iterator[Sample]:
    """Read at each scrape; only primaries look at their branches, so a sum over all brokers counts each once."""
    for set_name in driver.set_names:
        yield from _of_set(driver, set_name)


def _of_set(driver: Driver, set_name: SetName) -> Iterator[Sample]:
    core = driver.core(set_name)
    if not isinstance(core, Replica) or not core.is_serving or core.primary is None:
        return
    figures = core.primary.context.doubts.figures(read_now().wall_ms)
    labels: dict[str, str] = {"set": set_name}
    yield Sample("lockstep_set_in_doubt", "Prepared branches, at the primary.", figures.count, labels)
    yield Sample(
        "lockstep_set_in_doubt_oldest_seconds",
        "Age of the oldest of them: alarm on it.",
        figures.oldest_seconds,
        labels,
    )
    yield Sample(
        "lockstep_set_in_doubt_overdue",
        "Those that are prepared for longer than --in-doubt-ms.",
        figures.overdue,
        labels,
    )
