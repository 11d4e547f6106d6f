"""A disk of an earlier generation is of another history, although only the loss of data was accepted since (R7, R9, P7)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, MapSeen
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        return replace(given, earlier_generations=()) if isinstance(given, MapSeen) else given


MUTATION = Mutation(
    "R7, R9: loss accepted in one set stops no other, whoever of it sleeps meanwhile",
    lambda: Parts(make_replica=Forgetful),
    tuple(
        f"loss_accepted_in_another_set/{case}"
        for case in ("once", "twice", "not told", "a branch is prepared")
    ),
)
