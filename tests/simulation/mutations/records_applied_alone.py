"""Backups show what an open transaction publishes at once, each record by itself (DESIGN 3: a transaction is applied whole)."""

from msgspec.structs import replace

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AppliedRecord, PackedPublish, Publish
from lockstep.core.set_state import SetState
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class TornState(SetState):
    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        if isinstance(record, Publish | PackedPublish) and record.transaction is not None:
            record = replace(record, transaction=None)
        super().apply(index, epoch, record, is_durable)


class Torn(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        state.__class__ = TornState if self.primary is None else SetState


def _aim(options: Options) -> None:
    options.faults = ("kill broker",)
    options.fault_gap_us = 4 * SECOND


MUTATION = Mutation(
    "DESIGN 3: a transaction becomes visible by applying one record",
    lambda: Parts(make_replica=Torn),
    ("atomicity", "failure_aborts"),
    seeds=range(10),
    aim=_aim,
)
