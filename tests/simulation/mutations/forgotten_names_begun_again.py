"""What a set forgets leaves nothing behind: a name of our coordinator whose end it does not know any more may be used again
(T5)."""

from msgspec.structs import replace

from lockstep.core.ids import LogIndex
from lockstep.core.records import AnyRecord, ForgetHeuristic, ForgetOutcomes
from services.primary.core.primary import PrimaryCore
from services.primary.core.writer import Writer
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class WithoutHorizon(Writer):
    def append(self, record: AnyRecord, is_durable: bool, places: int = 0) -> LogIndex:
        if isinstance(record, ForgetOutcomes | ForgetHeuristic):
            record = replace(record, name_horizon_ms=0)
        return super().append(record, is_durable, places)


class Weak(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.writer.__class__ = WithoutHorizon


MUTATION = Mutation(
    "T5: a name whose outcome may be forgotten is not begun again",
    lambda: Parts(make_replica=Weak),
    ("forgotten_branch_repeated",),
)
