"""The primary shrinks the set as far as it likes, and completes writes below the minimum (R3, R4, histories 12 and 22)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member
from lockstep.core.ids import BrokerId
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ShrinkingMembership(Membership):
    def is_below_minimum(self) -> bool:
        return False

    def _without_lost_member(
        self, lost: set[BrokerId]
    ) -> tuple[tuple[Member, ...], tuple[Member, ...]] | None:
        kept = self.set_map
        self.set_map = replace(kept, min_in_sync=1)
        try:
            return super()._without_lost_member(lost)
        finally:
            self.set_map = kept


class Shrinking(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = ShrinkingMembership


MUTATION = Mutation(
    "R3, R4: nothing is completed, and nobody removed, below min_in_sync",
    lambda: Parts(make_replica=Shrinking),
    ("history_12_below_the_minimum", "history_12_branch"),
)
