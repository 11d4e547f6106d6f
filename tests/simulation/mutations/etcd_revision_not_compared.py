"""A disk compares entries of the map with etcd's, and not how far etcd itself was (R1, history 26)."""

from lockstep.core.etcd_comparison import Lacking
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.store_protocol import SetOpened
from services.broker.core.set_facts import SetFacts
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ShortsightedFacts(SetFacts):
    def lacking(self, opened: SetOpened) -> Lacking:
        found = super().lacking(opened)
        return found if found.revision == opened.map_revision else found._replace(revision=0)


class Shortsighted(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._facts.__class__ = ShortsightedFacts


MUTATION = Mutation(
    "R1, history 26: stores remember the highest revision of etcd, and whoever is ahead of it starts nothing",
    lambda: Parts(make_replica=Shortsighted),
    ("history_26_decision_lost/disks remember no stamp",),
)
