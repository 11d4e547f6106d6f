"""A store does not mark on disk that a snapshot is being installed over what it has (R8, history 18)."""

import msgspec

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, StepResult, WriteMeta
from services.store.core.meta import MARK_INSTALL, decode_set_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class UnmarkedDisk(VirtualDisk):
    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        if isinstance(step, WriteMeta):
            meta = decode_set_meta(step.data)
            if meta.mark == MARK_INSTALL:
                step = WriteMeta(encode_meta(msgspec.structs.replace(meta, mark="")))
        return super().perform(set_name, step)


MUTATION = Mutation(
    "R8: installing is marked on disk before old state is touched",
    lambda: Parts(make_disk=UnmarkedDisk),
    ("history_18_crash_while_installing",),
)
