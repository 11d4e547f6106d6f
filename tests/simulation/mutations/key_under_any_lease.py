"""A lease key counts as held under whichever lease it was put (R6)."""

from lockstep.core.ids import BrokerId, Incarnation, SetName
from services.broker.core.set_lease import SetLease
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class CarelessLease(SetLease):
    @property
    def is_key_held(self) -> bool:
        return self.lease_id != 0 and self._key_lease_id != 0


class Careless(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._lease.__class__ = CarelessLease


MUTATION = Mutation(
    "R6: the key counts under the very lease that is held now",
    lambda: Parts(make_replica=Careless),
    ("promoted_under_a_lease_that_is_gone",),
)
