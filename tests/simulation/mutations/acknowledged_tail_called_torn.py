"""A disk remembers no commit index: an acknowledged last frame that is bad is cut off as torn (R10, history 17)."""

import msgspec

from lockstep.core.ids import LogIndex, SetName
from services.store.core.disk import AnyStep, ReadMeta, StepResult
from services.store.core.meta import decode_set_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class ForgetfulDisk(VirtualDisk):
    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        result = super().perform(set_name, step)
        if isinstance(step, ReadMeta) and isinstance(result, bytes) and result:
            return encode_meta(msgspec.structs.replace(decode_set_meta(result), commit_index=LogIndex(0)))
        return result


MUTATION = Mutation(
    "R10: a bad tail is torn only if no acknowledgement at or past it is known",
    lambda: Parts(make_disk=ForgetfulDisk),
    ("history_17_last_member_damaged/last frame",),
)
