"""A coordinator decides late, as if nobody could have decided before, in what etcd has lost since (R1, T3, history 26)."""

from lockstep.core.clock import Now
from services.coordinator.core.transaction import Transaction
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Rash(Transaction):
    def _is_late(self, now: Now) -> bool:
        return False


MUTATION = Mutation(
    "R1, T3: what is decided long after it was taken up is decided only when a roll call was answered",
    lambda: Parts(make_coordinator=coordinator_of(Rash)),
    (
        "left_behind_in_a_restored_etcd/it had asked for votes",
        "left_behind_in_a_restored_etcd/it had all votes",
        "left_behind_in_a_restored_etcd/it only knew of it",
    ),
)
