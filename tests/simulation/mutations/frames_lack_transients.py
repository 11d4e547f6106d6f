"""A whole memory stays whole by frames of which the primary has no transient parts (R12)."""

from lockstep.core.ids import LogIndex
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.writer.log.transients_from = LogIndex(0)


MUTATION = Mutation(
    "R12: frames make whole only with their transient parts",
    lambda: Parts(make_replica=Forgetful),
    ("frames_without_transients",),
)
