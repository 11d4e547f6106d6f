"""A replica that was restarted counts places anew: what it missed has no place (DESIGN 3, history 3)."""

import msgspec

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AppliedRecord, PackedPublish, Publish
from lockstep.core.set_state import SetState
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class CountingState(SetState):
    """Where records were missed, a message's place is not what the record says."""

    missed = 0

    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        self.missed += index - self.applied - 1
        if isinstance(record, Publish | PackedPublish) and self.missed:
            record = msgspec.structs.replace(record, ordinal=record.ordinal + 1)
        super().apply(index, epoch, record, is_durable)


class Counting(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        copy = self.backup.copy if self.backup is not None else None
        if copy is not None and copy.is_durable_only and state.applied and type(state) is SetState:
            state.__class__ = CountingState
            state.missed = 1  # type: ignore[attr-defined]


MUTATION = Mutation(
    "DESIGN 3: a message's position is (index, ordinal) of its record",
    lambda: Parts(make_replica=Counting),
    ("history_03_transients_and_positions/plain",),
)
