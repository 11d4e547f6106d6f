"""The consolidator takes what it has written to the snapshot for durable, and lets segments go (section 5)."""

from services.store.core.consolidator import Consolidator
from services.store.core.messages import StoreEffect, StoreInput
from services.store.core.procedure import Procedure
from services.store.core.store_core import StoreCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Hopeful(Consolidator):
    def _flush(self) -> Procedure[None]:
        self._the.flushed_index = self._the.snapshot_index
        self._unflushed_items = 0
        yield from ()


class HopefulStore(StoreCore):
    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        for lanes in self._sets.values():
            lanes.consolidator.__class__ = Hopeful
        return super().handle(event, now)


MUTATION = Mutation(
    "section 5: a segment is dropped when the snapshot that covers it is flushed",
    lambda: Parts(make_store_core=HopefulStore),
    ("power_loss_behind_the_consolidator",),
)
