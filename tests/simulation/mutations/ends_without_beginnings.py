"""What a group is done with is dropped, although a transaction began there that ended later (DESIGN 5, 7, history 19)."""

from lockstep.core.ids import LogIndex
from services.store.core.consolidator import Consolidator
from services.store.core.journal import Journal
from services.store.core.messages import StoreEffect, StoreInput
from services.store.core.store_core import StoreCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Literal(Consolidator):
    def _owed_after(self, journal: Journal) -> LogIndex:
        assert self._state is not None
        return self._state.owed_after()


class LiteralStore(StoreCore):
    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        for lanes in self._sets.values():
            lanes.consolidator.__class__ = Literal
        return super().handle(event, now)


MUTATION = Mutation(
    "DESIGN 5, history 19: the end of a transaction is owed with all that it brings to be",
    lambda: Parts(make_store_core=LiteralStore),
    ("history_19_events_of_the_open",),
)
