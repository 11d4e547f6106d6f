"""A rejected command's number is consumed on the primary alone: backups do not know of it (DESIGN 6, history 25)."""

import msgspec

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AppliedRecord, RejectCommand
from lockstep.core.set_state import SetState
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class UnawareState(SetState):
    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        if isinstance(record, RejectCommand):
            record = msgspec.structs.replace(record, command=None)
        super().apply(index, epoch, record, is_durable)


class Unaware(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        state.__class__ = UnawareState if self.primary is None else SetState


MUTATION = Mutation(
    "DESIGN 6: a rejected command consumes its number by a record",
    lambda: Parts(make_replica=Unaware),
    ("history_25_command_numbers/rejected, heard",),
)
