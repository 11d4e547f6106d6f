"""What the state keeps, not kept: outcomes, and what a refusal that came late may not undo (T2, T5)."""

from typing import Any

from lockstep.core.ids import TransactionKey
from lockstep.core.outcomes import Outcome, Outcomes
from tests.simulation.mutations import Mutation
from tests.simulation.mutations.replicas import HookedReplica
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class ForgottenOutcomes(Outcomes):
    """Records nothing."""

    __slots__ = ()

    def record(self, key: TransactionKey, outcome: Outcome) -> None:
        return


class OutcomesNotKept(HookedReplica):
    def promoted(self, primary: Any) -> None:
        primary.context.state.outcomes.__class__ = ForgottenOutcomes


def _doubt(options: Options) -> None:
    options.faults = ("reset streams", "kill broker", "cut clients off", "pause broker")


MUTATIONS = (
    Mutation(
        "outcomes not kept",
        "T5: outcomes are kept for a retention",
        lambda: Parts(make_replica=OutcomesNotKept),
        _doubt,
    ),
)
