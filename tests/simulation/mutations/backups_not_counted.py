"""The primary acknowledges what its own disk alone has (R3, history 21)."""

from lockstep.core.cluster_map import Member
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class LonelyMembership(Membership):
    def counted(self) -> set[Member]:
        return {self.own}


class Lonely(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = LonelyMembership


MUTATION = Mutation(
    "R3: acknowledged is what every counted member has on disk",
    lambda: Parts(make_replica=Lonely),
    ("history_21_stalled_voters",),
)
