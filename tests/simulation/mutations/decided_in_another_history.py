"""A coordinator decides with votes of a history in which the cluster is not any more (T3, R7, history 26)."""

from dataclasses import replace

from lockstep.core.branch_names import generation_tag
from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView
from services.coordinator.core.messages import Decide
from services.coordinator.core.transaction import Transaction
from tests.simulation.coordination.mutations import coordinator_of
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Unhistorical(Transaction):
    _seen: LogView | None = None

    def read(self, view: LogView, now: Now) -> None:
        before = len(self._context.effects)
        super().read(replace(view, generation=self.generation), now)
        self._say_of(view, before)

    def wake(self, now: Now) -> None:
        before = len(self._context.effects)
        super().wake(now)
        self._say_of(self._seen, before)

    def _say_of(self, view: LogView | None, before: int) -> None:
        """What is decided now is said to be of the present history."""
        self._seen = view
        effects = self._context.effects
        for place in range(before, len(effects)):
            effect = effects[place]
            if isinstance(effect, Decide) and view is not None:
                effects[place] = replace(effect, generation=generation_tag(view.generation))


MUTATION = Mutation(
    "T3, R7: what was voted for in another history of the cluster is not decided any more",
    lambda: Parts(make_coordinator=coordinator_of(Unhistorical)),
    ("commit_amid_accepted_loss/lives, with all votes in its hands",),
)
