"""A swap brings one learner in, however many are ready (R4)."""

from lockstep.core.cluster_map import Member
from lockstep.core.ids import BrokerId
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class OneByOneMembership(Membership):
    def _with(
        self, coming: list[Member], lost: set[BrokerId]
    ) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        return super()._with(coming[:1], lost)


class OneByOne(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = OneByOneMembership


MUTATION = Mutation(
    "R4: all learners that are ready come in one swap, in the places of lost disks that may not be removed",
    lambda: Parts(make_replica=OneByOne),
    ("most_disks_lost_at_the_minimum/two of three", "most_disks_lost_at_the_minimum/four of five"),
)
