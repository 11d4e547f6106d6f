"""A transaction that was handed on counts its messages from the beginning again: two of them get one position (3, T8)."""

from services.primary.core.primary import PrimaryCore
from tests.simulation.handed_over import draw_handed_over
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Recounting(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        for _, progress in primary.context.progress.items():
            progress.ordinal = 0


MUTATION = Mutation(
    "T8: a transaction that is handed on goes on where it was",
    lambda: Parts(make_replica=Recounting),
    seeds=range(3),
    draw=draw_handed_over,
)
