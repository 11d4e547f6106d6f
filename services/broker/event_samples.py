"""What a broker shows at /metrics of readers of committed events: who is how far behind, and what holds plans."""

from collections.abc import Iterator

from lockstep.runtime.driver import Driver
from lockstep.runtime.metrics import Sample
from services.broker.core.replica import Replica
from services.broker.events.planner import Planner


def event_samples(driver: Driver, planner: Planner) -> Iterator[Sample]:
    """Of all sets; read by the metrics server's thread. Lags are told by primaries, holds by whoever made the last plans."""
    for set_name in driver.set_names:
        core = driver.core(set_name)
        if not isinstance(core, Replica) or not core.is_serving or core.primary is None:
            continue
        commit_index = core.primary.commit_index
        for group in tuple(core.primary.context.state.subscriptions.by_id.values()):
            yield Sample(
                "lockstep_event_lag_entries",
                "Log entries that a group of readers of committed events has not acknowledged.",
                max(commit_index - group.floor, 0),
                {"set": set_name, "group": group.name},
            )
    for result, count in (("made", planner.moments.made_total), ("missed", planner.moments.missed_total)):
        yield Sample(
            "lockstep_events_quiet_moments_total",
            "Times that coordinators were asked to hold commits for plans of committed events.",
            count,
            {"result": result},
        )
    for set_name, seconds in planner.held_seconds().items():
        yield Sample(
            "lockstep_events_held_seconds",
            "How long ago a transaction committed that holds plans back, as a sibling has no outcome: alarm on it.",
            seconds,
            {"set": set_name},
        )
