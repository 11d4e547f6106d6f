"""A primary has its lease key again as soon as it has a lease, unless etcd says already that it was set back (R1, R6)."""

from dataclasses import replace

from lockstep.core.ids import BrokerId, Incarnation, SetName
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


def hasty(
    set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
) -> Replica:
    return Replica(set_name, broker, incarnation, replace(settings, regain_wait_ms=0))


MUTATION = Mutation(
    "R1, R6: who has lost its lease, and its members, leaves others the time to say that etcd was set back",
    lambda: Parts(make_replica=hasty),
    ("deposed_before_it_is_told",),
)
