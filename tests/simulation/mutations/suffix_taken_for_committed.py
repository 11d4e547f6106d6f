"""A store takes its log's end for the commit index: its suffix is shown after a restart, and consolidated (R11, history 11)."""

from lockstep.core.ids import LogIndex
from services.store.core.messages import StoreEffect, StoreInput
from services.store.core.store_core import StoreCore
from services.store.core.stored_set import StoredSet
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class EagerSet(StoredSet):
    @property
    def commit_index(self) -> LogIndex:
        return self.journal.end if self.journal else LogIndex(0)


class EagerStore(StoreCore):
    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        for lanes in self._sets.values():
            lanes.the.__class__ = EagerSet
        return super().handle(event, now)


MUTATION = Mutation(
    "R11, history 11: neither consolidator nor recovery sees anything beyond the commit index",
    lambda: Parts(make_store_core=EagerStore),
    ("history_11_suffix_consolidated",),
)
