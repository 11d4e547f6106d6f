"""A prepared branch presumes abort although the cluster's history was changed since it was begun (T4, history 26)."""

from dataclasses import replace

from lockstep.core.branch_names import branch_name
from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, DecisionHeard
from lockstep.core.xid import Xid
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Unhistorical(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if self.primary is None or not isinstance(given, DecisionHeard) or given.view is None:
            return given
        branch = self.primary.context.state.transactions.get(given.transaction)
        if branch is None:
            return given
        view = replace(given.view, generation=branch_name(Xid.decode(branch.xid)).generation)
        return DecisionHeard(given.set_name, given.request, given.transaction, view)


MUTATION = Mutation(
    "T4, history 26: abort is presumed only in the generation in which the transaction was begun",
    lambda: Parts(make_replica=Unhistorical),
    ("branch_finds_its_decision/another generation",),
)
