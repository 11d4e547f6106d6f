"""A newcomer whose snapshot reaches beyond what others of the set hold is swapped in (R8, history 18)."""

from lockstep.core.ids import DiskId
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class CarelessMembership(Membership):
    def _durable_on(self, disk: DiskId) -> int:
        return 1 << 62


class Careless(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = CarelessMembership


MUTATION = Mutation(
    "R8: what cannot be cut back is on all disks of the set first",
    lambda: Parts(make_replica=Careless),
    ("history_18_snapshot_too_far",),
)
