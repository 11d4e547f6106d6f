"""A prepared branch that finds no decision rolls itself back, although its participants are in the log (T4, history 6)."""

from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, DecisionHeard
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Presumptuous(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, DecisionHeard) and given.view is not None and given.view.decision is None:
            view = replace(given.view, participants=None, participants_revision=0, is_unattested=False)
            return DecisionHeard(given.set_name, given.request, given.transaction, view)
        return given


def aim(options: Options) -> None:
    """Branches ask soon: while others are being prepared."""
    assert options.coordination is not None, "a world with coordinators"
    options.coordination = replace(options.coordination, decision_ask_ms=100)


MUTATION = Mutation(
    "T4, history 6: participants without a decision mean undecided, and the branch waits",
    lambda: Parts(make_replica=Presumptuous),
    ("branch_finds_its_decision/undecided",),
    range(61, 79),
    aim,
    draw_coordinated,
)
