"""A prepared branch follows a COMMIT although it is in no list that it was decided for (T3)."""

from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, DecisionHeard
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Incautious(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if not isinstance(given, DecisionHeard) or given.view is None:
            return given
        view = given.view
        if view.decision is not None:
            view = replace(view, participants=None)
        elif view.outcome is not None:
            view = replace(view, outcome=replace(view.outcome, participants=()))
        return DecisionHeard(given.set_name, given.request, given.transaction, view)


MUTATION = Mutation(
    "T3: a decision commits those alone that it was made for",
    lambda: Parts(make_replica=Incautious),
    (
        "branch_that_was_not_decided/behind the list, decided",
        "branch_that_was_not_decided/behind the list, only the outcome is left",
        "branch_that_was_not_decided/its number is another set's, decided",
        "branch_that_was_not_decided/its number is another set's, only the outcome is left",
    ),
)
