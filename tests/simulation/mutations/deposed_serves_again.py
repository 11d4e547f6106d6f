"""A primary gets its lease key again in an etcd that was set back, whoever follows it (R1, R6, history 13)."""

from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Sure(PrimaryCore):
    @property
    def is_followed_by_all(self) -> bool:
        return True


class Sanguine(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.__class__ = Sure


MUTATION = Mutation(
    "R1, R6: where etcd was set back only who is followed by all members serves under another lease",
    lambda: Parts(make_replica=Sanguine),
    ("deposed_in_a_lost_etcd", "deposed_before_it_is_told"),
)
