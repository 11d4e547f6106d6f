"""Outcomes are not recorded, so that their absence means "rolled back" for all (T5)."""

from lockstep.core.ids import TransactionKey
from lockstep.core.outcomes import Outcome, Outcomes
from lockstep.core.set_state import SetState
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ForgottenOutcomes(Outcomes):
    __slots__ = ()

    def record(self, key: TransactionKey, outcome: Outcome) -> None:
        return


class OutcomesNotKept(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        state.outcomes.__class__ = ForgottenOutcomes


def _aim(options: Options) -> None:
    options.faults = ("reset streams", "kill broker", "cut clients off", "pause broker")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "T5: outcomes are kept for a retention",
    lambda: Parts(make_replica=OutcomesNotKept),
    ("crash_before_announcement",),
    seeds=range(10),
    aim=_aim,
)
