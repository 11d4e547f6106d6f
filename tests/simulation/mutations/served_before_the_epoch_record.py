"""A new primary serves as soon as its own disk has its epoch's record (R5, history 14)."""

from collections.abc import Collection

from lockstep.core.cluster_map import Member
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ImpatientMembership(Membership):
    primary: PrimaryCore

    def counted(self) -> Collection[Member]:
        return super().counted() if self.primary.is_serving else {self.own}


class Impatient(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = ImpatientMembership
        primary.membership.primary = primary  # type: ignore[attr-defined]


MUTATION = Mutation(
    "R5: an epoch is served when its record is at the commit index of the set as etcd has it",
    lambda: Parts(make_replica=Impatient),
    ("history_14_serving_too_early",),
)
