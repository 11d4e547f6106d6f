"""A disk that tells that etcd was set back follows whoever leads under a number that it knows (R1, history 13)."""

from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.store_protocol import SetOpened
from services.backup.core.backup_memory import LogStanding
from services.broker.core.set_facts import SetFacts
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class FollowingFacts(SetFacts):
    def standing(self, opened: SetOpened) -> LogStanding:
        return LogStanding.OURS


class FollowingReplica(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._facts.__class__ = FollowingFacts


MUTATION = Mutation(
    "R1: whoever knows of what etcd lacks follows nobody, for an epoch may have begun twice",
    lambda: Parts(make_replica=FollowingReplica),
    ("epoch_begun_twice",),
)
