"""A primary that stood still takes what its backups said before for what they say now (R1, R6, history 13)."""

from services.primary.core.backups import Backups
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Believing(Backups):
    def are_heard_lately(self, now_ms: int) -> bool:
        return True


class Drowsy(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.backups.__class__ = Believing


MUTATION = Mutation(
    "R1, R6: who stood still is followed by those alone who have said something since",
    lambda: Parts(make_replica=Drowsy),
    ("deposed_asleep_in_a_lost_etcd",),
)
