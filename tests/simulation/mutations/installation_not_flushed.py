"""A store says that a snapshot is installed before it is durable (R8, history 18)."""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, SnapshotFlush, StepResult
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class UnflushedDisk(VirtualDisk):
    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        return None if isinstance(step, SnapshotFlush) else super().perform(set_name, step)


MUTATION = Mutation(
    "R8: a newcomer counts when its snapshot is durable",
    lambda: Parts(make_disk=UnflushedDisk),
    ("history_18_crash_while_installing",),
)
