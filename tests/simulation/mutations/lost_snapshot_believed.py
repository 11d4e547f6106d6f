"""A store goes on from the snapshot that it wrote, although a step failed and took what was not flushed (DESIGN 5, P4)."""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, DiskError, StepResult
from services.store.core.messages import StoreEffect, StoreInput
from services.store.core.store_core import StoreCore
from services.store.core.stored_set import StoredSet
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Believing(StoredSet):
    @property
    def is_snapshot_known(self) -> bool:
        return True

    @is_snapshot_known.setter
    def is_snapshot_known(self, value: bool) -> None:
        pass


class BelievingStore(StoreCore):
    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        for lanes in self._sets.values():
            lanes.the.__class__ = Believing
        return super().handle(event, now)


class SilentDisk(VirtualDisk):
    """One that opens its database again by itself."""

    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        try:
            return super().perform(set_name, step)
        except DiskError:
            self.directories[set_name].snapshot.is_given_up = False
            raise


MUTATION = Mutation(
    "DESIGN 5: recovery loads the snapshot that is there",
    lambda: Parts(make_store_core=BelievingStore, make_disk=SilentDisk),
    ("snapshot_step_fails/write", "snapshot_step_fails/flush"),
)
