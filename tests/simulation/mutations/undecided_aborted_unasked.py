"""A coordinator aborts what another has left undecided, in an etcd that may have lost its COMMIT (R1, T3, history 26)."""

from lockstep.core.decision_log import ParticipantsEntry
from services.coordinator.core.transaction import Transaction
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Unasking(Transaction):
    def _is_in_doubt(self, entry: ParticipantsEntry, is_unattested: bool) -> bool:
        return False


MUTATION = Mutation(
    "R1, T3: what another coordinator has left undecided is aborted only when a roll call was answered",
    lambda: Parts(make_coordinator=coordinator_of(Unasking)),
    ("restored_under_a_coordinator/somebody comes late",),
)
