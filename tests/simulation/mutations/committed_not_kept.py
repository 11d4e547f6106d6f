"""Nobody keeps in the log who has committed while another participant was away (T4)."""

from lockstep.core.clock import Now
from services.coordinator.core.transaction import Transaction
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Forgetful(Transaction):
    def _keep_committed(self, now: Now) -> None:
        pass


MUTATION = Mutation(
    "T4: who has committed is kept in the log while others are away, for it may forget that",
    lambda: Parts(make_coordinator=coordinator_of(Forgetful)),
    ("committed_while_another_was_away",),
)
