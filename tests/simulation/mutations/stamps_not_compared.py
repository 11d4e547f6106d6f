"""A disk compares revisions with etcd's, and not the stamp that it remembers (R1, history 26)."""

from lockstep.core.etcd_comparison import Lacking
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.store_protocol import SetOpened
from services.broker.core.set_facts import SetFacts
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class CountingFacts(SetFacts):
    def lacking(self, opened: SetOpened) -> Lacking:
        return super().lacking(opened)._replace(stamp=None)


class Counting(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._facts.__class__ = CountingFacts


MUTATION = Mutation(
    "R1, history 26: an etcd that was set back is known by a stamp that it lacks, however far it has come since",
    lambda: Parts(make_replica=Counting),
    ("history_26_decision_lost/etcd has passed it before anybody looks",),
)
