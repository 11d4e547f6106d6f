"""Each reign of a process counts its questions about decisions from one (T3; P1)."""

from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.questions._last_request = 0


MUTATION = Mutation(
    "T3: an answer of the decision log counts for the question that it belongs to",
    lambda: Parts(make_replica=Forgetful),
    ("decision_of_an_earlier_reign",),
)
