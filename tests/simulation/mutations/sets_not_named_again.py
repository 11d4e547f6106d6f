"""A vote that is repeated names no resource sets: of a branch that a worker had prepared nobody learns where the others are, and
a plan that looks at one log so far takes its half alone (DESIGN 7)."""

from msgspec.structs import replace

from lockstep.core.ids import LogIndex
from lockstep.core.records import AnyRecord, Prepare
from services.primary.core.primary import PrimaryCore
from services.primary.core.writer import Writer
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class NamingOnce(Writer):
    def append(self, record: AnyRecord, is_durable: bool, places: int = 0) -> LogIndex:
        if isinstance(record, Prepare) and record.resource_sets:
            branch = self.state.transactions.get(record.transaction)
            if branch is not None and branch.is_prepared:
                record = replace(record, resource_sets=())
        return super().append(record, is_durable, places)


class Weak(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.writer.__class__ = NamingOnce


MUTATION = Mutation(
    "DESIGN 7: a branch that its coordinator commits says in which sets the transaction has branches",
    lambda: Parts(make_replica=Weak),
    seeds=range(3),
    draw=draw_coordinated,
)
