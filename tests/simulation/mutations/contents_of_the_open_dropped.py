"""The consolidator keeps nothing of transactions without outcome when it drops their segments (DESIGN 5, history 19)."""

from msgspec.structs import replace

from lockstep.core.ids import SetName
from lockstep.core.items import OPERATION, TRANSACTION
from services.store.core.disk import AnyStep, SnapshotWrite, StepResult
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class ForgetfulDisk(VirtualDisk):
    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        if isinstance(step, SnapshotWrite):
            kept = tuple(item for item in step.puts if item.key[:1] not in (OPERATION, TRANSACTION))
            step = replace(step, puts=kept)
        return super().perform(set_name, step)


MUTATION = Mutation(
    "DESIGN 5: a segment stays while it holds content of a transaction without outcome, or its content is in the snapshot",
    lambda: Parts(make_disk=ForgetfulDisk),
    ("history_19_contents_of_the_open",),
)
