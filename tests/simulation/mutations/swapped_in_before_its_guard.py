"""A learner comes into the set as soon as it is counted, whatever it has of what was before (R8)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member
from lockstep.core.ids import BrokerId, LogIndex
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class HastyMembership(Membership):
    def _with_ready_learners(
        self, lost: set[BrokerId]
    ) -> tuple[tuple[Member, ...], tuple[Member, ...]] | None:
        self.guards = {member: replace(guard, index=LogIndex(0)) for member, guard in self.guards.items()}
        return super()._with_ready_learners(lost)


class Hasty(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = HastyMembership


MUTATION = Mutation(
    "R8: a learner is swapped in when it is durable up to its guard",
    lambda: Parts(make_replica=Hasty),
    ("learner_behind_its_guard",),
)
