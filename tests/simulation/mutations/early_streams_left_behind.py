"""A reign that ends before it serves says nothing to those who have asked it for their sessions (P7)."""

from services.primary.core.client_hearing import ClientHearing
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Silent(ClientHearing):
    def turn_away_early(self, why: str) -> None:
        pass


class Abrupt(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.__class__ = Silent


MUTATION = Mutation(
    "P7: who does not lead owes nobody an answer",
    lambda: Parts(make_replica=Abrupt),
    ("reign_that_never_served",),
)
