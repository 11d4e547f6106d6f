"""A coordinator tells a branch its end again until it hears the very end, and *unknown* for ever (T4, history 20)."""

from lockstep.core.clock import Now
from services.coordinator.core.transaction import Transaction
from services.coordinator.core.votes import Completion
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class _Insistent(Transaction):
    def completed(self, number: int, completion: Completion, now: Now) -> None:
        is_unknown = completion is Completion.UNKNOWN_BRANCH
        super().completed(number, Completion.UNREACHABLE if is_unknown else completion, now)


MUTATION = Mutation(
    "T4, history 20: a branch that is gone has nothing left to roll back",
    lambda: Parts(make_coordinator=coordinator_of(_Insistent)),
    seeds=range(3),
    draw=draw_coordinated,
)
