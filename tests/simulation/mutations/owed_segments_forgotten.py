"""A recovery takes segments below the journal's chain for void, whoever is owed what is in them (DESIGN 5)."""

from msgspec.structs import replace

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, ReadSnapshotMeta, StepResult
from services.store.core.meta import decode_snapshot_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class ForgetfulDisk(VirtualDisk):
    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        result = super().perform(set_name, step)
        if isinstance(step, ReadSnapshotMeta) and isinstance(result, bytes) and result:
            return encode_meta(replace(decode_snapshot_meta(result), owed=()))
        return result


def _aim(options: Options) -> None:
    options.has_subscriber = True


MUTATION = Mutation(
    "DESIGN 5: what is owed survives every crash",
    lambda: Parts(make_disk=ForgetfulDisk),
    ("history_19_events_of_the_open",),
    seeds=range(5, 10),
    aim=_aim,
)
