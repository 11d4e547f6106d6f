"""What a broker shows at /metrics of readers of committed events: who is how far behind, and what holds plans."""

from collections.abc import Iterator

from lockstep.runtime.driver import Driver
from lockstep.runtime.metrics import Sample
from services.broker.core.replica import Replica
from services.broker.events.planner import Planner


def event_samples(driver: Driver, planner: Planner) -> Iterator[Sample]:
    """Of all sets. Lags are told by primaries, of groups for which something is kept; holds by whoever made the last plans."""
    held = planner.held_seconds()
    for set_name in sorted({*driver.set_names, *held}):
        yield Sample("lockstep_events_held_seconds", held.get(set_name, 0.0), {"set": set_name})
    for set_name in driver.set_names:
        core = driver.core(set_name)
        if not isinstance(core, Replica) or not core.is_serving or core.primary is None:
            continue
        commit_index = core.primary.commit_index
        for group in core.primary.context.state.subscriptions.owed():
            lag = max(commit_index - group.floor, 0)
            yield Sample("lockstep_event_lag_entries", lag, {"set": set_name, "group": group.name})
