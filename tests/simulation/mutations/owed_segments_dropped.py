"""The consolidator drops every segment that the snapshot covers, whoever is owed what is in it (DESIGN 5, history 19)."""

from services.store.core.consolidator import Consolidator
from services.store.core.journal import Journal
from services.store.core.messages import StoreEffect, StoreInput
from services.store.core.segment import Segment
from services.store.core.store_core import StoreCore
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class Tidy(Consolidator):
    def _is_owed(self, journal: Journal, segment: Segment) -> bool:
        return False


class TidyStore(StoreCore):
    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        for lanes in self._sets.values():
            lanes.consolidator.__class__ = Tidy
        return super().handle(event, now)


def _aim(options: Options) -> None:
    options.has_subscriber = True


MUTATION = Mutation(
    "DESIGN 5: a segment stays while it holds committed events that are owed to a named group",
    lambda: Parts(make_store_core=TidyStore),
    ("history_19_events_of_the_open",),
    seeds=range(5),
    aim=_aim,
)
