"""A set forgets that a branch has committed although the decision log has its transaction, and names nobody who has (T4)."""

from lockstep.core.clock import Now
from lockstep.core.decision_log import LoggedParticipants
from lockstep.core.inputs import AnyInput, ParticipantsListed
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Careless(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, ParticipantsListed):
            return ParticipantsListed(given.set_name, given.request, LoggedParticipants())
        return given


MUTATION = Mutation(
    "T4, T5: an outcome is kept as long as the decision log has its transaction, and does not keep that itself",
    lambda: Parts(make_replica=Careless),
    (
        "committed_while_coordinators_were_away/the same primary",
        "committed_while_coordinators_were_away/failover",
        "committed_while_coordinators_were_away/full restart",
    ),
)
