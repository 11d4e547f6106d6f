"""A prepared branch waits for its coordinator for ever, and never looks for its decision by itself (T4, history 6)."""

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, DecisionHeard
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Waiting(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, DecisionHeard):
            return DecisionHeard(given.set_name, given.request, given.transaction, None)
        return given


MUTATION = Mutation(
    "T4, history 6: a prepared branch whose coordinator is gone finds its decision by itself",
    lambda: Parts(make_replica=Waiting),
    ("branch_finds_its_decision/commit", "branch_finds_its_decision/nothing left"),
)
