"""A branch that votes while it reads the log believes what it has read all the same (T3, history 6)."""

from lockstep.core.ids import TransactionKey
from services.primary.core.decision_questions import DecisionQuestions
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class TrustingQuestions(DecisionQuestions):
    def voted(self, key: TransactionKey) -> None:
        """The question goes on."""


class Trusting(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.questions.__class__ = TrustingQuestions


MUTATION = Mutation(
    "T3: who presumes abort has taken no vote since before it read",
    lambda: Parts(make_replica=Trusting),
    ("branch_finds_its_decision/overtaken by a vote",),
)
