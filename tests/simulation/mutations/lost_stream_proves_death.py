"""A backup that cannot reach the primary takes it for dead, lease or not (R6, history 10a)."""

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, LeaseKeySeen, PrimaryStreamClosed
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Hasty(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, PrimaryStreamClosed):
            self._facts.lease_key_seen(LeaseKeySeen(self.set_name, None))
        return given


MUTATION = Mutation(
    'R6: "connection refused" proves nothing',
    lambda: Parts(make_replica=Hasty, is_lease_key_compared=False),
    ("history_10a_refusing_port",),
)
