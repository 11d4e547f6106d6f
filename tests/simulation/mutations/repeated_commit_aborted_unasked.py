"""A coordinator aborts a commit that may have been decided before, in an etcd that may have lost that (R1, T3, history 26)."""

from lockstep.core.clock import Now
from services.coordinator.core.transaction import Transaction
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Unasking(Transaction):
    def _propose(self, now: Now) -> None:
        self._may_be_decided = False
        super()._propose(now)


MUTATION = Mutation(
    "R1, T3: a commit that may have been decided before is aborted only when a roll call was answered",
    lambda: Parts(make_coordinator=coordinator_of(Unasking)),
    (
        "commit_repeated_in_a_restored_etcd/the list was closed",
        "commit_repeated_in_a_restored_etcd/the list is lost, too",
    ),
)
