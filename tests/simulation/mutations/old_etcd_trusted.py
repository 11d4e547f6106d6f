"""A replica whose disk is ahead of etcd begins all the same, and does not compare what etcd says of itself (R1, history 13)."""

from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.store_protocol import SetOpened
from services.broker.core.set_facts import SetFacts
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class TrustingFacts(SetFacts):
    def is_ahead_of_etcd(self, opened: SetOpened) -> bool:
        return False


class Trusting(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._facts.__class__ = TrustingFacts


MUTATION = Mutation(
    "R1: whoever is ahead of etcd in epoch or revision starts nothing",
    lambda: Parts(make_replica=Trusting, is_mark_compared=False),
    ("history_13_etcd_set_back",),
)
